"""Keeps the gradient sums of a window, one per loss. One sum at a time is in `.grad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._counts import Count, Reduction, is_zero
from gradgate.accumulation._gradients import (
    add,
    backward,
    backward_sharded,
    dense_values,
    multiply,
    separate,
)
from gradgate.accumulation._precision import LossScale
from gradgate.accumulation._running_sum import SAME, RunningSum, headroom_of, measured
from gradgate.batch_size import SmallBatch
from gradgate.errors import GradientError, GraphError, UpdateError
from gradgate.ownership import checksum
from gradgate.ranks import RankStatus, ShardedCoordinator
from gradgate.torch_compat import is_dtensor, tensor_version

_trains = attrgetter("requires_grad")


class GradientSums:
    """Runs backward passes and keeps one gradient sum per loss until the sums are divided.

    Losses have different divisors, so their sums must stay separate. Autograd adds into ``.grad``, which therefore
    holds the sum of the current loss; the other sums are set aside. With ``thorough``, every ``.grad`` is checked
    for writes by other code, rather than only the first and the last. With ``measures``, the gradient of the first
    micro-batch is measured.
    """

    _current: RunningSum | None = None  # the sum in `.grad`
    _torn = False  # True during a backward pass, and after one that raised
    # Returns the measured first micro-batch; reading it synchronizes.
    first: Callable[[], SmallBatch | None] = staticmethod(lambda: None)

    def __init__(
        self,
        parameters: Sequence[Tensor] = (),
        scale: LossScale | None = None,
        *,
        thorough: bool = False,
        measures: bool = False,
        sharded: ShardedCoordinator | None = None,
    ) -> None:
        self.parameters = parameters
        self.by_name: dict[str, RunningSum] = {}
        self._sharded = sharded
        self._scale = scale
        self._thorough, self._measures = thorough, measures
        self._orders = (parameters,) if thorough else (parameters, parameters[::-1])
        self._watch()

    def add(
        self,
        name: str,
        loss: Tensor,
        count: Count,
        reduction: Reduction,
        retain_graph: bool,
        receiving: Sequence[Tensor] | None,
        items: float | None = None,
        also: Sequence[Tensor] = (),
    ) -> None:
        """Add a loss's gradient to its sum. With a count of zero, no backward pass runs unless ``items`` is given.

        Gradients are computed only for the owned parameters in ``receiving`` (by default all) and the leaves in
        ``also``. If the loss is a part of a coupled loss, ``items`` is the part's weight, and ``count`` is the
        number of items that the part adds to the sum's count.
        """
        self.check()
        chosen = self._current
        if chosen is None or chosen.name != name:
            chosen = self._choose(name)
        first = not chosen.known and chosen.all_known  # no items so far
        measure = first and self._measures and items is None and len(self.by_name) == 1
        empty = items is None and not isinstance(count, Tensor) and not count
        if not empty or self._sharded is not None:  # sharded backward passes need all ranks
            # Checked each time, because parameters may be frozen and unfrozen between micro-batches.
            inputs = tuple(filter(_trains, self.parameters if receiving is None else receiving))
            if not inputs:
                raise GraphError(
                    "backward: every parameter that the optimizer owns is frozen (requires_grad is False), so "
                    "nothing can be updated. Unfreeze a parameter, or leave this update out."
                )
            inputs = (*inputs, *also) if also else inputs
            empties = [each for each in inputs if each.grad is None]
            self._torn = True
            if self._sharded is not None:
                per_item = items or (1.0 if reduction == "sum" else count)
                weight = 0.0 if empty else chosen.weight(loss, per_item)
                backward_sharded(loss, self._seed(loss, weight), retain_graph, self._sharded, also)
            else:
                factor, weight = chosen.prepare(loss, count, reduction, items)
                if factor is not SAME:
                    self._multiply(factor)
                # A weight that is a tensor holds 1, or 0 for a count of zero.
                if weight is SAME or isinstance(weight, Tensor) or weight == 1:
                    backward(loss, self._seed(loss, weight), inputs, retain_graph)
                else:  # backward into an empty `.grad`, then add the result with its weight
                    sums = self._swap(None)
                    backward(loss, self._seed(loss, 1.0), inputs, retain_graph)
                    gradients = self._swap(sums)
                    with torch.no_grad():
                        add(self.parameters, gradients, weight)
            if empties:
                separate(empties)
        chosen.record(loss, count, reduction)
        if measure and chosen.unit is not None:  # with a count of zero, there is no gradient yet
            self.first = measured(dense_values(self.parameters), count, chosen.unit, self._scale)
        self._torn = False
        self._watch()

    def prepare(
        self, name: str, loss: Tensor, count: Count, reduction: Reduction
    ) -> tuple[RunningSum, Count]:
        """Rescale a loss's sum to the unit (see :class:`RunningSum`) of its next contribution.

        Returns:
            the sum, and the weight of the contribution.
        """
        self.check()
        chosen, weight = self._choose(name), SAME
        if not is_zero(count):
            self._torn = True
            factor, weight = chosen.prepare(loss, count, reduction)
            self._multiply(factor)
            self._torn = False
        self._watch()
        return chosen, weight

    @torch.no_grad()
    def _multiply(self, factor: Count) -> None:
        multiply(dense_values(self.parameters), factor)

    def _seed(self, loss: Tensor, weight: Count) -> Tensor:
        """Return the gradient that starts the backward pass: a weight, nearly always 1, times the loss scale."""
        if isinstance(weight, Tensor):
            seed = weight.to(loss.dtype).reshape(loss.shape)
            return seed if self._scale is None else self._scale.apply(seed)
        # New for each pass, because a hook on the loss may change it in place.
        seed = torch.ones_like(loss) if weight == 1 else torch.full_like(loss, weight)
        return seed if self._scale is None else self._scale.apply(seed)

    def _choose(self, name: str) -> RunningSum:
        """Swap the named loss's sum into ``.grad``, and return it."""
        chosen = self.by_name.get(name)
        if chosen is None:
            if self._sharded is not None and self.by_name:
                raise UpdateError(
                    f"backward: {name!r} is a second loss, and under fully_shard there is one sum for all "
                    "losses. Pass the sum of the losses: update.backward(loss_a + loss_b, count=n)."
                )
            unit = None if self._sharded is None else self._sharded.unit
            chosen = self.by_name[name] = RunningSum(name, partial(headroom_of, self.parameters), unit)
        if chosen is not self._current:
            if self._current is not None:
                self._current.aside = self._swap(chosen.aside)
            elif chosen.aside is not None:
                self._swap(chosen.aside)
            chosen.aside = None
            self._current = chosen
        return chosen

    def _swap(self, others: Sequence[Tensor | None] | None) -> list[Tensor | None]:
        """Replace all gradients with ``others``, or with None; return the replaced ones."""
        gradients = [parameter.grad for parameter in self.parameters]
        for parameter, other in zip(self.parameters, others or [None] * len(gradients), strict=True):
            parameter.grad = other
        return gradients

    def _watch(self) -> None:
        """Record identity and version of the first and the last ``.grad``; if ``thorough``, of every ``.grad``."""
        version = tensor_version.use
        self._watched = []
        for order in self._orders:
            for parameter in order:  # a generator here would cost 2 % of a tiny model's update
                gradient = parameter.grad
                if self._thorough or gradient is not None:
                    self._watched.append((parameter, gradient, 0 if gradient is None else version(gradient)))
                    if not self._thorough:
                        break

    def check(self) -> None:
        """Compare ``.grad`` with what :meth:`_watch` recorded, and raise if other code has changed it.

        Two parameters are enough to detect clearing, clipping and unscaling.
        """
        if self._torn:
            raise UpdateError(
                "update: a backward inside the block raised and the exception was caught there, so the sum may "
                "hold part of a micro-batch. The window was rolled back. Catch the exception outside the block, "
                "or use accumulator.step(), which retries."
            )
        version = tensor_version.use
        for parameter, gradient, before in self._watched:
            if parameter.grad is not gradient or (gradient is not None and version(gradient) != before):
                raise GradientError(
                    "update: .grad was changed inside the block, outside update.backward(...): by zero_grad, a "
                    "clip, scaler.unscale_ or another backward. The window was rolled back. Leave these to the "
                    "update: Accumulator(clip_norm=..., scaler=...), update.backward(loss)."
                )

    def combine(self, totals: dict[str, float] | None, units: dict[str, float] | None) -> float | None:
        """Combine all sums in ``.grad``; return the factor still to be applied, or None if every count is zero.

        ``totals`` holds each loss's count over all ranks. None means the counts of this process; reading them
        synchronizes if they are on a device. If there is a single loss, every rank converts its sum to the unit in
        ``units``.
        """
        self.check()
        totals = totals or {name: running.total_count() for name, running in self.by_name.items()}
        if not any(totals.values()):
            return None
        if len(totals) == 1:
            ((name, total),) = totals.items()
            if units is None:
                return self.by_name[name].factor(total)
            mine = self.by_name.get(name)
            if mine is not None and mine.unit not in (None, units[name]):
                multiply(dense_values(self.parameters), float(mine.unit) / units[name])
            return units[name] / total
        if self.by_name:
            # Keep the first loss's tensors: with clear="zero" they are the tensors from before the window.
            current = self._choose(next(iter(self.by_name)))
            multiply(dense_values(self.parameters), current.factor(totals[current.name]))
            for name, running in self.by_name.items():
                if running.aside is not None:
                    add(self.parameters, running.aside, running.factor(totals[name]))
                    running.aside = None
        return 1.0

    def status(self) -> RankStatus:
        """Return this rank's counts, totals and filled gradients. Synchronizes if counts are on a device."""
        self.check()
        tallies = {name: running.tally() for name, running in self.by_name.items()}
        return RankStatus(
            counts={name: tally.count for name, tally in tallies.items()},
            totals={name: tally.total for name, tally in tallies.items()},
            units={n: float(running.unit) for n, running in self.by_name.items() if running.unit is not None},
            filled="".join(map(self._filled, range(len(self.parameters)))),
            first=self.first(),
            trained=checksum(self.parameters),
        )

    def _filled(self, index: int) -> str:
        """Return whether any loss has a gradient for a parameter: "0" no, "1" yes, "2" a sparse gradient."""
        parameter = self.parameters[index]
        if self._sharded is not None and is_dtensor(parameter):
            # `.grad` is zero, not None, where this rank reached no parameter
            return str(int(id(parameter) in self._sharded.reached))
        asides = [running.aside[index] for running in self.by_name.values() if running.aside is not None]
        held = [gradient for gradient in (parameter.grad, *asides) if gradient is not None]
        return "0" if not held else "2" if all(gradient.is_sparse for gradient in held) else "1"

    def all_reduced(self, name: str, unit: float) -> None:
        """Record that ``.grad`` holds the sum of all ranks, in this unit."""
        self.by_name[name].unit = unit
        self._watch()

    def release(self) -> None:
        """Release gradients; keep losses and counts for logging."""
        for running in self.by_name.values():  # otherwise a reference cycle keeps the sums alive
            running.aside, running.headroom = None, RunningSum.headroom
        self._current, self._watched, self.parameters, self._orders = None, [], (), ((),)

    def state(self) -> list[dict[str, Any]]:
        """Return copies of all sums, in plain containers."""
        self.check()
        in_grad = [parameter.grad for parameter in self.parameters]
        return [
            running.state_dict(in_grad if running is self._current else running.aside or ())
            for running in self.by_name.values()
        ]

    def resume(self, state: list[dict[str, Any]]) -> None:
        """Load saved sums."""
        for saved in state:
            running = RunningSum.from_state(saved, partial(headroom_of, self.parameters))
            running.aside = [
                None if gradient is None else gradient.to(parameter.device, copy=True)
                for parameter, gradient in zip(self.parameters, saved["gradients"], strict=True)
            ]
            self.by_name[running.name] = running
        if state:
            self._choose(state[0]["name"])
        self._watch()
