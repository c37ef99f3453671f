"""Windows in real trainers: how far is each gradient that the optimizer receives from that of the whole window?

Run by the tests in one process, and by ``on_ranks.py`` on several ranks, which then share each window.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gradgate.integrations.accelerate import exact as exact_accelerator
from gradgate.integrations.lightning import ExactAccumulation
from gradgate.integrations.transformers import exact as exact_trainer
from tests.integrations.text_models import ROWS, model_of, texts

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
WINDOW = 4 // RANKS
SIZES = (5, 3, 4, 1, 6, 2)  # windows of 5, 3, 4, 1 and of 6, 2
BATCHES = [list(range(sum(SIZES[:i]), sum(SIZES[: i + 1]))) for i in range(len(SIZES))]
WINDOWS = [slice(0, 13), slice(13, 21)]
QUIET = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
WRONG = 0.1  # the smallest error, relative to the largest gradient, that counts as wrong
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 9)).double()


generator = torch.Generator().manual_seed(1)
TEXTS = torch.randint(9, (21, 7), generator=generator)
VALID = torch.randint(1, 8, (21, 1), generator=generator)
LABELS = torch.where(torch.arange(7) < VALID, TEXTS.roll(1, 0), -100)


def samples(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x[:, 0]), y[:, 0])  # the first of each row is valid


def tokens(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x[:, 0]) - y[:, :1]).pow(2).mean()


def errors(model: nn.Module, optimizer: torch.optim.Optimizer, truth: list[Tensor], run: Any) -> list[float]:
    """Run, and return the relative errors of the gradients that the optimizer steps on."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    wanted = [torch.autograd.grad(loss, parameters) for loss in truth]
    received = gradients(optimizer, run)
    assert len(received) == len(wanted)
    return [error(*pair) for pair in zip(received, wanted, strict=True)]


def gradients(optimizer: torch.optim.Optimizer, run: Callable[[], object]) -> list[list[Tensor]]:
    """Run, and return the gradients that the optimizer steps on, for each step."""
    received: list[list[Tensor]] = []
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def note(*_: object) -> None:
        received.append([parameter.grad.clone() for parameter in parameters])

    # Afterwards, because Lightning runs the last backward pass within the step.
    hook = optimizer.register_step_post_hook(note)
    run()
    hook.remove()
    return received


def error(received: list[Tensor], wanted: tuple[Tensor, ...]) -> float:
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    return max(float((a - b).abs().max()) for a, b in zip(received, wanted, strict=True)) / largest


def mine() -> list[list[int]]:
    return BATCHES[RANK::RANKS]


def windows_of_four(rows: Tensor) -> tuple[Tensor, ...]:
    """Return the windows of a loader that yields four rows at a time."""
    return rows.split(4 * WINDOW * RANKS)


# -- Lightning ------------------------------------------------------------------------------------------


def lightning(loss_of: Loss, exact: bool, *, count: Any = None, **options: Any) -> list[float]:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.0)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

        def train_dataloader(self) -> Any:
            return DataLoader(list(zip(TEXTS, LABELS, strict=True)), batch_sampler=mine())

        def training_step(self, batch: Any) -> Tensor:
            return loss_of(self.net, *batch)

    module = Module()
    ranks = {"strategy": "ddp", "use_distributed_sampler": False} if RANKS > 1 else {}
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        max_epochs=1,
        accumulate_grad_batches=WINDOW,
        callbacks=[ExactAccumulation(count)] if exact else [],
        **QUIET,
        **ranks,
        **options,
    )
    truth = [loss_of(module.net, TEXTS[w], LABELS[w]) for w in WINDOWS]
    return errors(module, module.optimizer, truth, lambda: trainer.fit(module))


# -- Accelerate -----------------------------------------------------------------------------------------


def accelerate(loss_of: Loss, exact: bool, *, count: Any = None, **options: Any) -> list[float]:
    from accelerate import Accelerator, DataLoaderConfiguration

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def run() -> None:
        accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=WINDOW,
            dataloader_config=DataLoaderConfiguration(even_batches=False),
            **options,
        )
        if exact:
            exact_accelerator(accelerator)
        loader = DataLoader(list(zip(TEXTS, LABELS, strict=True)), batch_size=4)  # 4, 4, 4, 4 and 4, 1
        prepared, stepping, loader = accelerator.prepare(model, optimizer, loader)
        for x, y in loader:
            with accelerator.accumulate(prepared):
                given = {} if count is None or not exact else {"count": count((x, y))}
                accelerator.backward(loss_of(prepared, x, y), **given)
                stepping.step()
                stepping.zero_grad()

    truth = [loss_of(model, *part) for part in zip(*map(windows_of_four, (TEXTS, LABELS)), strict=True)]
    return errors(model, optimizer, truth, run)


# -- transformers ---------------------------------------------------------------------------------------


def transformers(
    name: str,
    exact: bool,
    *,
    count: Any = None,
    truth: Callable[..., Tensor] | None = None,
    wrap: Callable[[Any], Any] = lambda model: model,
    kind: Any = None,
    func: Any = None,
    rows: int = ROWS - 2,
    before: Callable[[Any], None] = lambda trainer: None,
    **options: Any,
) -> list[float]:
    from transformers import Trainer, TrainingArguments

    model = wrap(model_of(name))
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    x, y = (part[:rows] for part in texts(name))
    data = [{"input_ids": row, "labels": label} for row, label in zip(x, y, strict=True)]
    folder = tempfile.mkdtemp()
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=WINDOW,
        num_train_epochs=1,
        accelerator_config={"even_batches": False},
        train_sampling_strategy="sequential",
        report_to=[],
        save_strategy="no",
        **{"max_grad_norm": 0.0, "logging_strategy": "no", **options},
        **dict.fromkeys(("use_cpu", "disable_tqdm"), True),
        dataloader_pin_memory=False,
    )
    trainer = (kind or Trainer)(
        model, arguments, train_dataset=data, optimizers=(optimizer, None), compute_loss_func=func
    )
    if exact:
        exact_trainer(trainer, count)
    before(trainer)
    wanted = truth or (lambda model, x, y: model(input_ids=x, labels=y).loss)
    windows = [wanted(model, *part) for part in zip(*map(windows_of_four, (x, y)), strict=True)]
    found = errors(model, optimizer, windows, trainer.train)
    shutil.rmtree(folder)
    return found


def next_tokens(logits: Tensor, labels: Tensor, **how: Any) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **how)


def divided(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
    return next_tokens(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def averaged(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
    return next_tokens(outputs["logits"], labels)


def mean_of_logits(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return next_tokens(model(input_ids=x).logits, y)


def smoothed(model: Any, x: Tensor, y: Tensor) -> Tensor:
    log_probs = model(input_ids=x).logits.log_softmax(-1)
    each = -0.9 * log_probs.gather(-1, y.clamp(min=0).unsqueeze(-1))[..., 0] - 0.1 * log_probs.mean(-1)
    return each[y != -100].mean()


# Each: how, and how far it may be off: float64, or a model that computes in float32.
CASES: dict[str, tuple[Callable[[bool], list[float]], float]] = {
    **{
        f"{trainer.__name__}, {loss.__name__}": (
            lambda exact, trainer=trainer, loss=loss: trainer(loss, exact),
            1e-12,
        )
        for trainer in (lightning, accelerate)
        for loss in (samples, tokens)
    },
    **{
        f"transformers, {name}": (lambda exact, name=name: transformers(name, exact), within)
        for name, within in {
            "bert": 1e-12,
            "gpt2": 1e-6,
            "t5": 1e-6,
        }.items()
    },
    "transformers, averaged": (
        lambda exact: transformers("llama", exact, truth=mean_of_logits, func=averaged),
        1e-6,
    ),
}
# Right as they come, at least in one process. They have to stay so.
RIGHT = {
    "transformers, smoothed": (
        lambda exact: transformers("bert", exact, truth=smoothed, label_smoothing_factor=0.1, rows=16),
        1e-6,
    ),
    "transformers, llama": (lambda exact: transformers("llama", exact), 1e-6),
    "transformers, divided": (
        lambda exact: transformers("llama", exact, truth=mean_of_logits, func=divided),
        1e-6,
    ),
}
