"""The loss is divided by the tokens of 4 micro-batches, of which each window holds 2: half the gradient.

A tiny random model generates from numbers; the reward is the share of small ones. Nothing is downloaded.
"""

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

torch.manual_seed(0)
words = {"<pad>": 0, "<end>": 1} | {f"w{number}": number for number in range(2, 40)}
inner = Tokenizer(WordLevel(words, unk_token="<pad>"))
inner.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
    )
)
arguments = GRPOConfig(
    output_dir="out",
    loss_type="dapo",
    per_device_train_batch_size=4,
    num_generations=4,
    steps_per_generation=4,
    gradient_accumulation_steps=2,
    max_completion_length=12,
    max_steps=10,
    learning_rate=1e-3,
    beta=0.0,
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer = GRPOTrainer(
    model=model,
    reward_funcs=lambda completions, **_: [
        sum(int(word[1:]) < 20 for word in text.split() if word[0] == "w") / 12 for text in completions
    ],
    args=arguments,
    train_dataset=Dataset.from_list([{"prompt": f"w{2 + number} w{3 + number}"} for number in range(32)]),
    processing_class=tokenizer,
)
trainer.train()
print(f"loss {trainer.state.log_history[-1]['train_loss']:.3f}")
