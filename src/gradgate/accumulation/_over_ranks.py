"""An accumulator's part in training over several ranks: found out, agreed upon, and added up once for a window."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from gradgate.accumulation._gradients import dense_values, is_part, multiply
from gradgate.accumulation._models import in_use
from gradgate.accumulation._parameters import named_some
from gradgate.accumulation._settings import Settings
from gradgate.accumulation._sums import Sums
from gradgate.errors import OptionError, RankError
from gradgate.ranks import Engine, Meeting, Ranks, Said, Sharded, Sync, agree, engine_of
from gradgate.torch_compat import sparse_tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Over: TypeAlias = "dist.ProcessGroup | DeviceMesh | Literal[False] | None"
"""Ranks that train together: a process group, a mesh of one dimension, None for all, False for this process."""


class OverRanks:
    """What an accumulator knows of the other ranks.

    Args:
        over: as the accumulator was given it.
        sync: when gradients go over ranks.
    """

    def __init__(self, over: Over, sync: Sync) -> None:
        if sync not in ("last", "every", "overlap"):
            raise OptionError(f"Accumulator: sync is {sync!r}; it is 'last', 'every' or 'overlap'.")
        self._sync = sync
        if not (over is None or over is False or dist.is_available()):
            raise OptionError(
                "Accumulator: ranks is given, but this torch was built without torch.distributed. "
                "Leave it out, or install a torch that has it."
            )
        self._over = over
        self._ranks: Ranks | None = None
        self._engine: Engine | None = None
        self._known: list[weakref.ref[Any]] = []  # what the engine was made of
        self._agreed: list[weakref.ref[Any]] = []  # the parameters that all ranks were asked about

    def place(self) -> tuple[int, int]:
        """Return this process's rank, and how many there are."""
        if self._over is False or not (dist.is_available() and dist.is_initialized()):
            return 0, 1
        self._ranks = ranks = self._ranks or Ranks(_group(self._over))
        return ranks.rank, ranks.count

    def engine(self, parameters: Sequence[Tensor], settings: Settings) -> Engine | None:
        """Return what holds the parameters over ranks; None where one process trains alone.

        At first, and when parameters or modules have changed, all ranks are asked whether they train the same.

        Raises:
            RankError: they do not; or ``model=`` does not say how parameters are wrapped.
        """
        if self._over is False or not (dist.is_available() and dist.is_initialized()):
            return None
        self._ranks = ranks = self._ranks or Ranks(_group(self._over))
        if ranks.count == 1 and not any(map(is_part, parameters)):
            return None
        modules = list(settings.models)
        neighbours = [module for models in in_use if models is not settings.models for module in models]
        if self._engine is None or not _are(self._known, (*parameters, *modules, *neighbours)):
            engine = engine_of(parameters, settings.models.roots, modules, neighbours, ranks, self._sync)
            _check_covered(parameters, settings, ranks)
            if isinstance(engine, Sharded) and isinstance(self._engine, Sharded):
                engine.unit = (
                    self._engine.unit
                )  # the same on all ranks, whose neighbours may end at other times
            if not _are(self._agreed, parameters):
                agree(ranks, {**_facts(parameters, settings), "sync": self._sync})
                self._agreed = _references(parameters)
            self._known, self._engine = _references((*parameters, *modules, *neighbours)), engine
        return self._engine


def _references(things: Sequence[Any]) -> list[weakref.ref[Any]]:
    return [weakref.ref(thing) for thing in things]


def _are(references: list[weakref.ref[Any]], things: Sequence[Any]) -> bool:
    """Say whether these are the very objects; ids alone may be those of others that are gone."""
    return len(references) == len(things) and all(
        reference() is thing for reference, thing in zip(references, things, strict=True)
    )


def _check_covered(parameters: Sequence[Tensor], settings: Settings, ranks: Ranks) -> None:
    """Raise RankError if an owned parameter is in no module of ``model=``: its wrapper would be unknown."""
    covered = {id(parameter) for parameter in settings.models.parameters()}
    missing = [parameter for parameter in parameters if id(parameter) not in covered]
    if not missing:
        return
    if not settings.models:
        raise RankError(
            f"update: {ranks.count} ranks train together, and model is not given, so it is unknown which wrapper "
            "synchronises gradients. Pass the module that the loop calls, its wrapper included: "
            "Accumulator(optimizer, model=model); or ranks=False, if each process trains alone."
        )
    raise RankError(
        f"update: {len(missing)} of {len(parameters)} parameters are in no module of model=: "
        f"{named_some(missing, settings)}. With several ranks it has to be known how each is wrapped. Name all "
        "modules: model=[encoder, head]; a parameter alone: model=[encoder, torch.nn.ParameterList([scale])]."
    )


def _group(over: Over) -> dist.ProcessGroup | None:
    if over is None or over is False or isinstance(over, dist.ProcessGroup):
        return over or None
    if over.ndim != 1:
        raise OptionError(
            f"Accumulator: ranks is a mesh of {over.ndim} dimensions {over.mesh_dim_names}. Pass the one that data "
            "is dealt along: ranks=mesh['data']."
        )
    return over.get_group()


def _facts(parameters: Sequence[Tensor], settings: Settings) -> dict[str, str | float]:
    """Return what has to be the same on all ranks."""
    shapes = [tuple(parameter.shape) for parameter in parameters]
    whole = [parameter.detach() for parameter in parameters if not is_part(parameter)]
    size = sum(float(one.double().abs().sum()) for one in whole)
    options = ("clip_norm", "clip_value", "nonfinite", "accumulate_dtype", "clear")
    return {
        "the number of parameters": str(len(parameters)),
        "the shapes of parameters": _brief(shapes),
        "the values of parameters (the sum of their sizes)": size,
        "optimizers": ", ".join(type(one).__name__ for one in settings.optimizers),
        "learning rates": _brief(
            [group.get("lr") for one in settings.optimizers for group in one.param_groups]
        ),
        **{name: str(getattr(settings, name)) for name in options},
        "a scaler": "given" if settings.scaler is not None else "not given",
    }


def _brief(items: list[Any]) -> str:
    text = str([float(item) if isinstance(item, Tensor) else item for item in items])
    return text if len(text) <= 60 else f"{text[:40]}... ({len(items)}, {zlib.crc32(text.encode()):x})"


def said_by(sums: Sums, parameters: Sequence[Tensor]) -> Said:
    """Return what this rank has to say of its part of the window. Waits where counts lie on a device."""
    tallies = {name: one.tally() for name, one in sums.by_name.items()}
    return Said(
        counts={name: tally.count for name, tally in tallies.items()},
        totals={name: tally.total for name, tally in tallies.items()},
        units={name: float(one.unit) for name, one in sums.by_name.items() if one.unit is not None},
        filled="".join(sums.filled()),
    )


def tell_of(engine: Engine, error: BaseException, *, replay: bool) -> Meeting:
    """Tell the other ranks that this one stops in the window, and why."""
    text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:200]
    return Meeting.hold(engine.ranks, Said(status="out of memory" if replay else "failed", error=text))


def add_over_ranks(
    engine: Engine, meeting: Meeting, sums: Sums, parameters: Sequence[Tensor], *, sent: bool
) -> float | None:
    """Bring the sums of all ranks together in every rank's ``.grad``; return the factor still to be applied.

    None says that every count is zero on all ranks. ``sent`` says that the last backward pass has added them up.
    """
    tallies, units = meeting.tallies, meeting.units
    totals = {name: tally.count for name, tally in tallies.items()}
    if not any(totals.values()):
        return None
    factor = sums.gather(totals)
    if isinstance(engine, Sharded):
        engine.keep_reached([each.filled for each in meeting.said], parameters)
        (total,) = totals.values()
        factor = engine.unit / total
        # Near what a rank adds up in a window, so that sums stay at the size of means.
        engine.unit = 2.0 ** round(math.log2(max(total / engine.ranks.count, 1)))
        return factor
    if sent:
        engine.spread_buffers()
        return factor
    if len(totals) == 1:
        (name,) = totals
        mine = sums.by_name.get(name)
        if mine is not None and mine.unit is not None and mine.unit != units[name]:
            multiply(dense_values(parameters), float(mine.unit) / units[name])
        factor = units[name] / totals[name]
    for parameter, kind in zip(parameters, meeting.filled, strict=True):
        if kind and parameter.grad is None:
            parameter.grad = _nothing(parameter, sparse=kind == 2)
        elif kind == 1 and parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
    engine.ranks.add_up([p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse])
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = engine.ranks.add_up_sparse(parameter.grad)
    engine.spread_buffers()
    return factor


def _nothing(parameter: Tensor, *, sparse: bool) -> Tensor:
    dtype = parameter.grad_dtype or parameter.dtype
    if not sparse:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    indices = torch.empty(
        1, 0, dtype=torch.long, device=parameter.device
    )  # of rows, as an embedding's gradient
    values = torch.empty(0, *parameter.shape[1:], dtype=dtype, device=parameter.device)
    return sparse_tensor(indices, values, parameter.shape)
