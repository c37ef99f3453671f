"""Events around the steps: schedulers, gradient scalers, epochs, communication between ranks, the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gradgate.events._records import Event, Ids


@dataclass(frozen=True, slots=True)
class SchedulerMade(Event):
    """A learning-rate scheduler was constructed."""

    scheduler: Annotated[int, "its number"]
    kind: Annotated[str, "its class: 'CosineAnnealingLR'"]
    optimizer: Annotated[int, "the optimizer whose learning rate it sets; -1 if unknown"]
    horizon: Annotated[
        float | None, "its length in scheduler steps: T_max, total_steps, the last milestone"
    ] = None
    periodic: Annotated[bool, "it starts over at its end"] = False
    lr: Annotated[tuple[float, ...], "the first learning rate of each group"] = ()


@dataclass(frozen=True, slots=True)
class Scheduled(Event):
    """A scheduler was advanced by its ``step()``."""

    scheduler: Annotated[int, "its number"]
    lr: Annotated[tuple[float, ...], "the new learning rate of each group"] = ()
    inner: Annotated[bool, "another scheduler, or a subclass's own step(), made the call"] = False


@dataclass(frozen=True, slots=True)
class ScalerUsed(Event):
    """A gradient scaler was constructed, or the user's code called one of its methods."""

    op: Annotated[
        Literal["made", "scale", "unscale", "step", "update"],
        "'scale': it multiplied a loss; 'unscale': it divided gradients; 'update': its scale may have changed",
    ]
    scaler: Annotated[int, "its number"]
    optimizer: Annotated[int, "the optimizer, for 'unscale' and 'step'; else -1"] = -1
    skipped: Annotated[bool, "gradients were inf or nan, so the optimizer did not step"] = False


@dataclass(frozen=True, slots=True)
class EpochStarted(Event):
    """Iteration over a DataLoader began."""

    loader: Annotated[int, "its number"]


@dataclass(frozen=True, slots=True)
class EpochEnded(Event):
    """A DataLoader was exhausted."""

    loader: Annotated[int, "its number"]
    batches: Annotated[int, "number of batches that it gave"] = 0


@dataclass(frozen=True, slots=True)
class Reduced(Event):
    """The user's code called a collective of ``torch.distributed``."""

    op: Annotated[str, "function and reduction: 'all_reduce:sum'"]
    parameters: Annotated[Ids, "parameters whose gradients or values were communicated"]
    numel: Annotated[int, "elements of the largest tensor"] = 0


@dataclass(frozen=True, slots=True)
class Sharded(Event):
    """A DistributedSampler was constructed: each rank gets a part of the data."""


@dataclass(frozen=True, slots=True)
class Wrapped(Event):
    """A DistributedDataParallel was constructed."""

    parameters: Annotated[Ids, "parameters whose gradients it averages over the ranks"]


@dataclass(frozen=True, slots=True)
class Gap(Event):
    """The log leaves out events here: the run was too long to keep them all."""

    count: Annotated[int, "number of missing events"]


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The run is over. ``site`` is empty."""

    how: Annotated[
        Literal["finished", "stopped", "failed"], "'stopped': after the requested number of steps or seconds"
    ]
