"""The situations: the training data, and how it is split."""

import torch
from _models import tiny
from torch import nn

from ._task import IGNORED, Task, cross_entropy, info_nce, valid

VALID_TOKENS = (3, 64, 8, 31)
VOCABULARY = 50
FITS = 8  # samples, once memory has become short


def classifier(
    sizes: tuple[int, ...], dtype: torch.dtype = torch.float64, norm: bool = False, **more
) -> Task:
    """A small network, and classes produced by another one."""
    x = torch.randn(sum(sizes), 20, dtype=torch.float64)
    y = (x @ torch.randn(20, 5, dtype=torch.float64)).argmax(1)
    hidden = [nn.Linear(20, 32), *([nn.BatchNorm1d(32)] if norm else []), nn.Tanh()]
    model = nn.Sequential(*hidden, nn.Linear(32, 5)).to(dtype)
    return Task(model, cross_entropy, x.to(dtype), y, sizes, **more)


def tokens() -> Task:
    """Four sequences of 65 tokens. VALID_TOKENS says how many of its next tokens each predicts."""
    text = torch.randint(VOCABULARY, (len(VALID_TOKENS), 66))
    x, y = text[:, :-1], text[:, 1:].clone()
    for row, tokens_that_count in zip(y, VALID_TOKENS, strict=True):
        row[tokens_that_count:] = IGNORED
    model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Tanh(), nn.Linear(16, VOCABULARY)).double()
    return Task(model, cross_entropy, x, y, (1,) * len(VALID_TOKENS), count=valid)


def pairs() -> Task:
    x = torch.randn(64, 1, 20, dtype=torch.float64).repeat(1, 2, 1)
    x += 0.3 * torch.randn_like(x)  # two views of each sample
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 8)).double()
    return Task(model, info_nce, x, torch.zeros(64, dtype=torch.long), (16,) * 4)


class ShortOfMemory(nn.Module):
    """Runs out of memory with more than FITS samples, once memory is declared short."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.updates = self.forwards = 0
        self.short = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        self.short |= self.updates == 1 and self.forwards == 2  # amid the second window
        if self.short and len(x) > FITS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (simulated).")
        return self.body(x)

    def note_update(self, *_) -> None:
        self.updates += 1
        self.forwards = 0


def memory() -> Task:
    task = classifier((16,) * 8)
    task.model = ShortOfMemory(task.model)
    task.optimizer.register_step_post_hook(task.model.note_update)
    return task


def timed(updates: int) -> Task:
    """A tiny model, so that a tool's overhead shows, and one epoch of that many updates."""
    torch.manual_seed(0)
    model, batches = tiny()
    x, y = (torch.cat(tensors * updates) for tensors in zip(*batches, strict=True))
    sizes = tuple(len(labels) for _, labels in batches) * updates
    return Task(model, cross_entropy, x, y, sizes, window=len(batches), make_optimizer=adam)


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


# Rows by how they are judged: by the error of the first update, or by the samples behind each update.
ERRORS = {
    "equal": lambda: classifier((32,) * 4),
    "sizes": lambda: classifier((32, 32, 32, 4)),
    "tokens": tokens,
    "bf16": lambda: classifier((8,) * 64, torch.bfloat16, window=64),
    "coupled": pairs,
    "batch_norm": lambda: classifier((32,) * 4, norm=True),
}
TRACES = {"tail": lambda: classifier((32,) * 6, epochs=2), "memory": memory}
UNITS = {"tail": 32, "memory": FITS}  # samples: the finest cut that a trace tells apart
