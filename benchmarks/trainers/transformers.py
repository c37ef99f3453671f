"""The Trainer of Hugging Face transformers. Clipping is off, because the gradient is compared unclipped."""

import tempfile

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from ._rows import VOCABULARY
from ._task import IGNORED, Task, Way


class WithLoss(nn.Module):
    """Returns its own loss, as Trainer expects."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self._loss = task.loss

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        outputs = self.model(x)
        loss = {} if labels is None else {"loss": self._loss(outputs, labels)}
        return {**loss, "logits": outputs}


def run(task: Task, model: nn.Module, dataset: list, **options) -> None:
    compute_loss_func = options.pop("compute_loss_func", None)
    collator = options.pop("data_collator", lambda items: items[0])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            **{"per_device_train_batch_size": 1, **options},
            gradient_accumulation_steps=task.window,
            num_train_epochs=task.epochs,
            train_sampling_strategy="sequential",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        Trainer(
            model,
            arguments,
            train_dataset=dataset,
            data_collator=collator,
            optimizers=(task.optimizer, None),
            compute_loss_func=compute_loss_func,
        ).train()


def train(task: Task, **options) -> None:
    dataset = [{"x": x, "labels": y} for x, y in task.micro_batches()]
    run(task, WithLoss(task), dataset, **options)


def train_with_counts(task: Task) -> None:
    def loss_fn(outputs: dict[str, Tensor], labels: Tensor, num_items_in_batch: int) -> Tensor:
        return task.loss(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    train(task, compute_loss_func=loss_fn)


def train_what_fits(task: Task) -> None:
    dataset = [{"x": x, "labels": y} for x, y in zip(task.x, task.y, strict=True)]
    size = max(task.sizes)
    options = {"auto_find_batch_size": True, "per_device_train_batch_size": size, "data_collator": None}
    run(task, WithLoss(task), dataset, **options)


class CausalLM(nn.Module):
    """One of the models in transformers, which accept the count."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
        self.body = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, **heads)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(input_ids=x).logits


def train_causal_lm(task: Task) -> None:
    # These models shift labels themselves; the last one of each row is ignored anyway.
    labels = torch.nn.functional.pad(task.y[:, :-1], (1, 0), value=IGNORED)
    pairs = zip(task.x.split(1), labels.split(1), strict=True)
    run(task, task.model.body, [{"input_ids": x, "labels": y} for x, y in pairs])


WAYS = (
    Way(train),
    Way(train_with_counts, ("sizes", "tokens"), "compute_loss_func with num_items_in_batch"),
    Way(train_causal_lm, ("tokens",), "a causal LM of transformers (Llama)", CausalLM),
    Way(train_what_fits, ("memory",), "auto_find_batch_size"),
)
