"""What goes on around the steps: schedules, scalers, epochs, other ranks, the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradgate.events._places import Event, Ids


@dataclass(frozen=True, slots=True)
class SchedulerMade(Event):
    """A learning-rate scheduler was constructed."""

    scheduler: int
    kind: str
    optimizer: int
    horizon: float | None = None  # steps until it has run its course: T_max, total_steps, the last milestone
    periodic: bool = False
    lr: tuple[float, ...] = ()  # the first rates


@dataclass(frozen=True, slots=True)
class Scheduled(Event):
    """A scheduler was advanced."""

    scheduler: int
    lr: tuple[float, ...] = ()
    inner: bool = False  # by another scheduler, or by its own class's override


@dataclass(frozen=True, slots=True)
class ScalerMade(Event):
    """A gradient scaler was constructed."""

    scaler: int
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Scaled(Event):
    """A gradient scaler multiplied a loss by its scale."""

    scaler: int


@dataclass(frozen=True, slots=True)
class Unscaled(Event):
    """A gradient scaler divided an optimizer's gradients by its scale."""

    scaler: int
    optimizer: int


@dataclass(frozen=True, slots=True)
class ScalerStepped(Event):
    """A gradient scaler was asked to step an optimizer, and did, or skipped."""

    scaler: int
    optimizer: int
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class ScalerUpdated(Event):
    """A gradient scaler was given the chance to change its scale."""

    scaler: int


@dataclass(frozen=True, slots=True)
class EpochStarted(Event):
    """A DataLoader began to be iterated over."""

    loader: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class EpochEnded(Event):
    """A DataLoader was exhausted."""

    loader: int


@dataclass(frozen=True, slots=True)
class Reduced(Event):
    """The user's code exchanged a tensor between ranks."""

    op: str  # "all_reduce:sum"
    parameters: Ids  # whose gradients or values these were
    world: int
    numel: int = 0


@dataclass(frozen=True, slots=True)
class Sharded(Event):
    """Data was divided among ranks, by a DistributedSampler."""

    ranks: int


@dataclass(frozen=True, slots=True)
class Planned(Event):
    """A plan was made with ``gradgate.plan``. Sizes in bytes, one for each micro-batch of the planned batch."""

    budget: int
    standing: int  # what training takes beside micro-batches: parameters, gradients, state
    peaks: tuple[int, ...]  # of each micro-batch, beside that
    samples: tuple[int, ...]
    whole: int  # what the batch would take uncut
    foreseen: bool = True


@dataclass(frozen=True, slots=True)
class Gap(Event):
    """Events between here and the next are not in the log: the run was too long to keep them all."""

    count: int


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The run is over. ``site`` is empty."""

    how: Literal["finished", "stopped", "failed"]
