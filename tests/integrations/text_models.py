"""Small models of transformers, made from scratch, and texts for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SMALL = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = {**SMALL, "vocab_size": 9, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
ROWS = 28  # of which 26 are in micro-batches of 4: windows of 4 and of 3


def model_of(name: str) -> Any:
    import transformers as t

    torch.manual_seed(0)
    llama = t.LlamaConfig(vocab_size=9, num_labels=3, pad_token_id=0, num_key_value_heads=2, **SMALL)
    bert = t.BertConfig(num_labels=3, **BERT)
    makers: dict[str, Callable[[], Any]] = {
        "llama": lambda: t.LlamaForCausalLM(llama),
        "llama classifier": lambda: t.LlamaForSequenceClassification(llama),
        "bert": lambda: t.BertForMaskedLM(bert),
        "bert classifier": lambda: t.BertForSequenceClassification(bert),
        "bert tagger": lambda: t.BertForTokenClassification(t.BertConfig(num_labels=9, **BERT)),
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(vocab_size=9, decoder_start_token_id=0, **T5)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=9, **GPT2)),
    }
    return makers[name]().double()


def texts(name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(1, 9, (ROWS, 7), generator=generator)
    if name.endswith("classifier"):
        return rows, torch.randint(3, (ROWS,), generator=generator)
    return rows, torch.where(
        torch.arange(7) < torch.randint(2, 8, (ROWS, 1), generator=generator), rows, -100
    )
