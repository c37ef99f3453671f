"""The last window of an epoch holds 2 micro-batches, and each loss is divided by 4.

ms-swift's trainer for classifiers, around a tiny random model. Its own set-up downloads a model, so the trainer
starts as transformers' does, with what the loss needs of it.
"""

import collections
from types import SimpleNamespace

import torch
import transformers
from swift.trainers.trainer import Trainer
from transformers import LlamaConfig, LlamaForSequenceClassification, TrainingArguments

torch.manual_seed(0)


class Classifier(Trainer):
    def __init__(self, *args, **kwargs):
        self.template = SimpleNamespace(sequence_parallel_size=1, padding_free=False)
        self.compute_loss_func = None
        transformers.Trainer.__init__(self, *args, **kwargs)
        self.accelerator.gradient_state.plugin_kwargs["num_steps"] = 1
        self.custom_metrics = {"train": collections.defaultdict(list), "eval": collections.defaultdict(list)}

    train = transformers.Trainer.train
    get_train_dataloader = transformers.Trainer.get_train_dataloader
    training_step = transformers.Trainer.training_step
    _maybe_log_save_evaluate = transformers.Trainer._maybe_log_save_evaluate
    log = transformers.Trainer.log
    create_optimizer = transformers.Trainer.create_optimizer
    create_optimizer_and_scheduler = transformers.Trainer.create_optimizer_and_scheduler
    create_scheduler = transformers.Trainer.create_scheduler

    def _compute_acc(self, *args, **kwargs):
        pass


config = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=32,
    pad_token_id=0,
    num_labels=2,
)
texts = torch.randint(5, 50, (40, 12))
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_train_epochs=3,
    learning_rate=1e-3,
    use_cpu=True,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
arguments.max_epochs = None  # an option of ms-swift
trainer = Classifier(
    LlamaForSequenceClassification(config),
    arguments,
    train_dataset=[{"input_ids": text, "labels": int(text[0] > 25)} for text in texts],
)
trainer.train()
print(f"loss {trainer.state.log_history[-1]['train_loss']:.3f}")
