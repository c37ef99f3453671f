"""The input of every way of training: a model, an optimizer, a loss, and micro-batches."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader

IGNORED = -100
MicroBatch = tuple[Tensor, Tensor]


def still(parameters) -> Optimizer:
    """An optimizer with learning rate 0, so that every step of a run is compared at the same weights."""
    return torch.optim.SGD(parameters, lr=0.0)


@dataclass
class Task:
    """One situation to train in."""

    model: nn.Module
    loss: Callable[..., Tensor]  # (outputs, labels, reduction="mean")
    x: Tensor
    y: Tensor
    sizes: tuple[int, ...]  # samples in each micro-batch
    window: int = 4  # micro-batches for one update
    epochs: int = 1
    count: Callable[[Tensor], int] = Tensor.numel  # items in labels
    make_optimizer: Callable[..., Optimizer] = still
    optimizer: Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = self.make_optimizer(self.model.parameters())

    def micro_batches(self, samples: int | None = None) -> list[MicroBatch]:
        """Split as this task says, or into micro-batches of that many samples."""
        return self._split(list(self.sizes) if samples is None else samples)

    def loader(self, samples: int | None = None) -> DataLoader[MicroBatch]:
        return loader(self.micro_batches(samples))

    def windows(self) -> list[MicroBatch]:
        """The whole batch of each update, for trainers that split it themselves."""
        ends = range(0, len(self.sizes), self.window)
        samples = [sum(self.sizes[start : start + self.window]) for start in ends]
        return self._split(samples)

    def _split(self, samples: int | list[int]) -> list[MicroBatch]:
        # Copies, as from a real loader: Composer deep-copies its micro-batches, and a view with its whole storage.
        pairs = zip(self.x.split(samples), self.y.split(samples), strict=True)
        return [(x.clone(), y.clone()) for x, y in pairs]

    def to(self, dtype: torch.dtype) -> "Task":
        """Convert the task, for a tool that does not support float64."""
        self.model.to(dtype)
        self.x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        return self


def loader(batches: list[MicroBatch]) -> DataLoader[MicroBatch]:
    """A DataLoader over ready-made batches, the same for all tools, so that collating takes no time."""
    return DataLoader(batches, batch_size=1, collate_fn=_only)  # type: ignore[arg-type]


def _only(items):
    (item,) = items
    return item


def valid(y: Tensor) -> int:
    return int((y != IGNORED).sum())


def cross_entropy(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), y.flatten(), ignore_index=IGNORED, reduction=reduction)


def info_nce(pairs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Each first view must find its second one among all that are present."""
    first, second = F.normalize(pairs, dim=-1).unbind(1)
    return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)), reduction=reduction)


@dataclass(frozen=True)
class Way:
    """How a tool is used: with its defaults, or with an option that changes some rows."""

    train: Callable[[Task], object]
    rows: tuple[str, ...] = ()  # those that the option is for; as it comes: all
    option: str = ""
    model: Callable[[], nn.Module] | None = None  # in place of the task's own
