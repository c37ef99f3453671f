"""Adds the gradients of a window: backward passes with a weight, and one sum for each loss."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradgate.accumulation._counts import Count, Reduction
from gradgate.accumulation._gradients import (
    add,
    by_device,
    dense_values,
    multiply,
    separate,
    total_norm,
)
from gradgate.accumulation._loss_scale import LossScale
from gradgate.autograd_graph import Graph
from gradgate.backward_weight import begins_with
from gradgate.batch_size import SmallBatch
from gradgate.errors import CountError, GradientError, GraphError, UpdateError
from gradgate.ownership import checksum
from gradgate.ranks import Coordinator, FullySharded, RankStatus, Totals
from gradgate.tally import Tally
from gradgate.torch_compat import (
    is_dtensor,
    reuses_gradients,
    run_backward,
    tensor_version,
    transforming,
)

_trains, _grad = attrgetter("requires_grad"), attrgetter("grad")
_Stamp: TypeAlias = "tuple[Tensor, Tensor | None, int]"  # a parameter, its gradient and its version
_torch_backward = inspect.unwrap(torch.autograd.backward)  # the checker may already have wrapped it


@dataclass(repr=False)
class LossSum:
    """The sum of one loss over a window, ``sum(count * gradient) / unit``, and the counts.

    The window's count is not known before the window ends. Until then, the sum is held in units of ``unit`` items:
    each backward pass begins with ``count / unit``, and at the end one multiplication by ``unit / total`` makes the
    sum a mean. The unit is the first count of the window, so equal counts run exactly the passes of a plain loop.
    """

    name: str
    unit: Count | None = None
    contributions: list[tuple[Count, Reduction, Tensor | float]] = field(default_factory=list)
    set_aside: list[Tensor | None] | None = None  # its gradients while `.grad` holds another loss's

    def __repr__(self) -> str:
        return f"LossSum({self.name!r}, {len(self.contributions)} contributions)"

    def weight(self, loss: Tensor, per_item: Count, unit_of: Callable[[Count], Count] | None = None) -> Count:
        """Return the weight of a contribution whose gradient is ``1 / per_item`` times a sum over its items.

        ``unit_of`` chooses the unit by the first such number; by default, that number. Does not synchronize.
        """
        unit = self.unit
        if unit is None and unit_of is not None:
            unit = self.unit = unit_of(per_item)
        elif unit is None:
            unit = per_item
            if isinstance(per_item, Tensor):  # a zero on a device is not read, and 0 is no unit
                unit = torch.where(per_item > 0, per_item, torch.ones_like(per_item))
            self.unit = unit
        if type(unit) is type(per_item) is int:
            return 1.0 if unit == per_item else per_item / unit
        if not isinstance(per_item, Tensor) and not isinstance(unit, Tensor):
            return per_item / unit
        return _on_device(per_item, loss) / _on_device(unit, loss)

    def record(self, loss: Tensor, count: Count, reduction: Reduction) -> None:
        """Record a contribution whose gradient has been added (or is zero, for a count of zero)."""
        # On a device, keep a clone: reading would synchronize, and some of torch's losses return a scalar in a
        # storage as large as the input.
        self.contributions.append((count, reduction, loss.item() if loss.is_cpu else loss.detach().clone()))

    @property
    def known_empty(self) -> bool:
        """Whether the sum is known to hold no items. Does not synchronize."""
        return not any(isinstance(count, Tensor) or count for count, _, _ in self.contributions)

    def total_count(self) -> int | float:
        """Return the number of items so far. Synchronizes with the device if counts are on a device."""
        return total([count for count, _, _ in self.contributions])

    def factor(self, count: float) -> float:
        """Return the factor that turns the sum into the mean over ``count`` items."""
        unit = as_number(self.unit) if isinstance(self.unit, Tensor) else self.unit
        return 0.0 if unit is None or not count else unit / count

    def tally(self) -> Tally:
        """Return the loss summed over its items, and the number of items. Synchronizes with the device."""
        values = _numbers([loss for _, _, loss in self.contributions])
        counts = [as_number(count) for count, _, _ in self.contributions]
        summed = sum(
            value if reduction == "sum" else value * count
            for value, count, (_, reduction, _) in zip(values, counts, self.contributions, strict=True)
            if count  # the mean over no items is 0/0; it adds nothing
        )
        return Tally(float(summed), sum(counts))

    def state_dict(self, gradients: Iterable[Tensor | None]) -> dict[str, Any]:
        """Return a copy of the sum and its ``gradients`` in plain containers, with counts as numbers."""
        return {
            "gradients": [None if gradient is None else gradient.detach().clone() for gradient in gradients],
            "name": self.name,
            "unit": None if self.unit is None else as_number(self.unit),
            "counts": [as_number(count) for count, _, _ in self.contributions],
            "reductions": [reduction for _, reduction, _ in self.contributions],
            "losses": _numbers([loss for _, _, loss in self.contributions]),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], parameters: Sequence[Tensor]) -> LossSum:
        """Rebuild a sum from :meth:`state_dict`, with its gradients on the parameters' devices."""
        gradients = [
            None if gradient is None else gradient.to(parameter.device, copy=True)
            for parameter, gradient in zip(parameters, state["gradients"], strict=True)
        ]
        contributions = list(zip(state["counts"], state["reductions"], state["losses"], strict=True))
        return cls(state["name"], state["unit"], contributions, gradients)


class Stamps:
    """The gradients that parameters hold at one moment, and their versions, to notice writes by other code.

    Args:
        parameters: the parameters.
        earlier: the stamps of parameters that hold no gradient now. A frozen module has no ``.grad``, but its
            gradients are saved and will be restored.
    """

    def __init__(self, parameters: Iterable[Tensor] = (), *, earlier: Stamps | None = None) -> None:
        version, before = tensor_version.use, {} if earlier is None else earlier._stamps
        self._stamps: dict[int, _Stamp] = {}
        for parameter in parameters:
            gradient = parameter.grad
            self._stamps[id(parameter)] = (
                before.get(id(parameter), (parameter, None, 0))
                if gradient is None
                else (parameter, gradient, version(gradient))
            )

    def made(self, parameter: Tensor, gradient: Tensor) -> bool:
        """Return whether a gradient is the one stamped for a parameter, and nothing has written to it."""
        _, stamped, version = self._stamps.get(id(parameter), (parameter, None, 0))
        return stamped is gradient and version == tensor_version.use(gradient)

    def hold(self) -> bool:
        """Return whether all stamped gradients are unchanged."""
        version_of = tensor_version.use
        for parameter, stamped, version in self._stamps.values():
            if parameter.grad is not stamped or (stamped is not None and version_of(stamped) != version):
                return False
        return True


def _ends(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the first and the last parameter that hold a gradient."""
    held = [parameter for parameter in parameters if parameter.grad is not None]
    return [held[0], held[-1]] if held else []


class GradientSums:
    """The gradient sums of a window, one per loss.

    Losses have different divisors, so their sums must stay separate. Autograd adds into ``.grad``, which therefore
    holds the sum of the current loss; the other sums are set aside.

    Args:
        parameters: the parameters that the accumulator owns.
        coordinator: the ranks that train together.
        left: the gradients in ``.grad`` when the window began.
        scale: the window's loss scale, if it has one.
        thorough: check every ``.grad`` for writes by other code, rather than only the first and the last.
        measures: measure the gradient of the first micro-batch, for the noise scale.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        coordinator: Coordinator,
        left: Stamps,
        scale: LossScale | None = None,
        *,
        thorough: bool = False,
        measures: bool = False,
    ) -> None:
        self.parameters = parameters
        self.by_name: dict[str, LossSum] = {}
        # Returns the measured first micro-batch; reading it synchronizes.
        self.first: Callable[[], SmallBatch | None] = lambda: None
        self._coordinator = coordinator
        self._sharded = coordinator.sharded
        self._left = left
        self._scale = scale
        self._measures, self._thorough = measures, thorough
        self._current: LossSum | None = None  # the sum in `.grad`
        self._torn = False  # True during a backward pass, and after one that raised
        self._all_held = False  # whether all parameters are known to hold a gradient of the current loss
        self._watched: Sequence[Tensor] = ()
        self._stamp()

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
        measure = self._measures and items is None and len(self.by_name) == 1 and chosen.known_empty
        empty = items is None and isinstance(count, (int, float)) and not count
        if not empty or self._sharded is not None:  # sharded backward passes need all ranks
            # Checked each time, because parameters may be frozen and unfrozen between micro-batches.
            inputs = tuple(filter(_trains, self.parameters if receiving is None else receiving))
            if not inputs:
                raise GraphError(
                    "backward: every parameter that the optimizer owns is frozen (requires_grad is False), so "
                    "nothing can be updated. Unfreeze a parameter, or leave this update out."
                )
            new = () if self._all_held else [parameter for parameter in inputs if parameter.grad is None]
            per_item = items or (1.0 if reduction == "sum" else count)
            weight = 0.0 if empty else chosen.weight(loss, per_item, self._coordinator.unit_of)
            self._torn = True
            # The seed is new for each pass, because a hook on the loss may change it in place.
            if self._scale is None and type(weight) is float and weight == 1:
                self._backward(loss, torch.ones_like(loss), (*inputs, *also), retain_graph, also)
            else:
                self._backward_weighted(loss, weight, (*inputs, *also), retain_graph, also)
            if new:
                separate(new)
                self._all_held = all(parameter.grad is not None for parameter in self.parameters)
        chosen.record(loss, count, reduction)
        if measure and chosen.unit is not None:  # with a count of zero, there is no gradient yet
            self.first = _measured(dense_values(self.parameters), count, chosen.unit, self._scale)
        self._torn = False
        self._stamp()

    def _stamp(self) -> None:
        """Stamp the watched gradients. Once both ends hold a gradient, they stay the watched ones."""
        watched = self._watched
        if self._thorough:
            watched = self.parameters
        elif not watched or watched[0].grad is None or watched[-1].grad is None:
            watched = self._watched = _ends(self.parameters)
        self._stamps = Stamps(watched)

    def _backward_weighted(
        self,
        loss: Tensor,
        weight: Count,
        inputs: tuple[Tensor, ...],
        retain_graph: bool,
        also: Sequence[Tensor],
    ) -> None:
        """Run a backward pass that begins with a weight and the loss scale."""
        # A 16-bit loss would round its weight, so its gradient is weighted after the pass.
        apart = self._sharded is None and _rounds(weight, loss.dtype)
        seed = torch.ones_like(loss) if apart else _seed(loss, weight)
        if self._scale is not None:
            seed = self._scale.apply(seed)
        sums = self._swap(None) if apart else []
        with begins_with(seed, loss):
            self._backward(loss, seed, inputs, retain_graph, also)
        if apart:
            separate(inputs)
            multiply(dense_values(self.parameters), weight)
            add(self.parameters, self._swap(sums))

    def _backward(
        self,
        loss: Tensor,
        seed: Tensor,
        inputs: tuple[Tensor, ...],
        retain_graph: bool,
        also: Sequence[Tensor],
    ) -> None:
        if self._sharded is None:
            backward(loss, seed, inputs, retain_graph)
        else:
            backward_sharded(loss, seed, retain_graph, self._sharded, also)

    def _choose(self, name: str) -> LossSum:
        """Swap the named loss's sum into ``.grad``, and return it."""
        chosen = self.by_name.get(name)
        if chosen is None:
            if self._sharded is not None and self.by_name:
                raise UpdateError(
                    f"backward: {name!r} is a second loss, and under fully_shard there is one sum for all "
                    "losses. Pass the sum of the losses: update.backward(loss_a + loss_b, count=n)."
                )
            chosen = self.by_name[name] = LossSum(name)
        if chosen is not self._current:
            if self._current is not None:
                self._current.set_aside = self._swap(chosen.set_aside)
            elif chosen.set_aside is not None:
                self._swap(chosen.set_aside)
            chosen.set_aside = None
            self._current = chosen
        return chosen

    def _swap(self, others: Sequence[Tensor | None] | None) -> list[Tensor | None]:
        """Replace all gradients with ``others``, or with None; return the replaced ones."""
        gradients, self._all_held = [parameter.grad for parameter in self.parameters], False
        for parameter, other in zip(self.parameters, others or [None] * len(gradients), strict=True):
            parameter.grad = other
        return gradients

    def check(self) -> None:
        """Raise if other code has changed a gradient, or a backward pass raised and the error was caught."""
        if self._torn:
            raise UpdateError(
                "update: a backward inside the block raised and the exception was caught there, so the sum may "
                "hold part of a micro-batch. The window was rolled back. Catch the exception outside the block, "
                "or use accumulator.step(), which retries."
            )
        if not self._stamps.hold():
            raise GradientError(
                "update: .grad was changed inside the block, outside update.backward(...): by zero_grad, a "
                "clip, scaler.unscale_ or another backward. The window was rolled back. Leave these to the "
                "update: Accumulator(clip_norm=..., scaler=...), update.backward(loss)."
            )

    def status(self) -> RankStatus:
        """Return this rank's counts, totals and filled gradients. Synchronizes if counts are on a device."""
        self.check()
        tallies = {name: loss_sum.tally() for name, loss_sum in self.by_name.items()}
        units = {name: loss_sum.unit for name, loss_sum in self.by_name.items() if loss_sum.unit is not None}
        return RankStatus(
            counts={name: tally.count for name, tally in tallies.items()},
            totals={name: tally.total for name, tally in tallies.items()},
            units={name: float(as_number(unit)) for name, unit in units.items()},
            filled="".join(map(self._filled, range(len(self.parameters)))),
            received=self.received(),
            first=self.first(),
            trained=checksum(self.parameters),
        )

    def _filled(self, index: int) -> str:
        """Return whether any loss has a gradient for a parameter: "0" no, "1" yes, "2" a sparse gradient."""
        parameter = self.parameters[index]
        if self._sharded is not None and is_dtensor(parameter):
            # `.grad` is zero, not None, where this rank reached no parameter
            return str(int(id(parameter) in self._sharded.reached))
        held = self._held(index)
        return "0" if not held else "2" if all(gradient.is_sparse for gradient in held) else "1"

    def _held(self, index: int) -> list[Tensor]:
        """Return the gradients that all losses have for a parameter."""
        aside = [loss_sum.set_aside[index] for loss_sum in self.by_name.values() if loss_sum.set_aside]
        return [gradient for gradient in (self.parameters[index].grad, *aside) if gradient is not None]

    def received(self) -> bool:
        """Return whether any parameter has received a gradient in this window. Call before :meth:`combine`.

        The zeros that ``clear="zero"`` left there are none.
        """
        return any(map(self._received, range(len(self.parameters))))

    def _received(self, index: int) -> bool:
        parameter = self.parameters[index]
        if self._sharded is not None and is_dtensor(parameter):
            return id(parameter) in self._sharded.reached
        return not all(self._left.made(parameter, gradient) for gradient in self._held(index))

    def combine(self, totals: Totals | None) -> float | None:
        """Combine the sums of all losses in ``.grad``; return the factor still to be applied to it.

        ``totals`` are the counts and units over all ranks, which divide the gradients of this rank in the same way.
        None means this process alone. Returns None if every count is zero. Synchronizes if counts are on a device.
        """
        self.check()
        if totals is None:
            counts: dict[str, float] = {
                name: loss_sum.total_count() for name, loss_sum in self.by_name.items()
            }
        else:
            counts = {name: tally.count for name, tally in totals.tallies.items()}
        if not any(counts.values()):
            return None
        if len(counts) == 1:
            ((name, count),) = counts.items()
            mine = self.by_name.get(name)
            if totals is None:
                return LossSum.factor(self.by_name[name], count)
            unit = totals.units[name]
            if mine is not None and mine.unit is not None and mine.unit != unit:
                multiply(dense_values(self.parameters), as_number(mine.unit) / unit)
            return unit / count
        if self.by_name:
            # Keep the first loss's tensors: with clear="zero" they are the tensors from before the window.
            current = self._choose(next(iter(self.by_name)))
            multiply(dense_values(self.parameters), current.factor(counts[current.name]))
            for name, loss_sum in self.by_name.items():
                if loss_sum.set_aside is not None:
                    add(self.parameters, loss_sum.set_aside, loss_sum.factor(counts[name]))
                    loss_sum.set_aside = None
        return 1.0

    def losses(self) -> list[float]:
        """Return the values of all losses so far. Synchronizes if they are on a device."""
        return [float(loss) for loss_sum in self.by_name.values() for *_, loss in loss_sum.contributions]

    def release(self) -> None:
        """Release gradients; keep losses and counts for logging."""
        for loss_sum in self.by_name.values():
            loss_sum.set_aside = None
        self._current, self._stamps, self.parameters = None, Stamps(), ()

    def state(self) -> list[dict[str, Any]]:
        """Return copies of all sums, in plain containers."""
        self.check()
        states = []
        for loss_sum in self.by_name.values():
            held = map(_grad, self.parameters) if loss_sum is self._current else loss_sum.set_aside or ()
            # Without the zeros that `clear="zero"` left: they are no part of the sum.
            states.append(
                loss_sum.state_dict(
                    None if gradient is None or self._left.made(parameter, gradient) else gradient
                    for parameter, gradient in zip(self.parameters, held, strict=False)
                )
            )
        return states

    def resume(self, state: list[dict[str, Any]]) -> None:
        """Load saved sums."""
        self.by_name = {saved["name"]: LossSum.from_state(saved, self.parameters) for saved in state}
        if state:
            first = self.by_name[state[0]["name"]]
            pairs = zip(self.parameters, first.set_aside or (), strict=True)
            first.set_aside = [parameter.grad if saved is None else saved for parameter, saved in pairs]
            self._choose(first.name)
        self._stamp()


def backward(loss: Tensor, seed: Tensor, inputs: tuple[Tensor, ...], retain_graph: bool) -> None:
    """Add ``seed`` times the gradient of ``loss`` to the ``.grad`` of ``inputs``, and to no other tensor.

    Equals ``torch.autograd.backward(loss, seed, inputs=inputs)`` for a scalar and a seed of the same
    shape, dtype and device. But torch's function checks every input for overridden torch functions, which
    takes 0.7 ms for 1,000 parameters: for a tiny model, a third of an update's overhead over a plain loop.

    With CUDA graphs, a new ``.grad`` is cloned, because the graph's next run overwrites its memory.
    """
    before = [leaf.grad for leaf in inputs] if reuses_gradients.use() else None
    watched = torch.autograd.backward is not _torch_backward  # other code wraps every backward pass
    if watched or type(loss) is not Tensor or transforming.use():
        with on_purpose():
            torch.autograd.backward(loss, seed, retain_graph=retain_graph, inputs=inputs)
    else:
        run_backward.use(
            (loss,), (seed,), retain_graph, False, inputs, allow_unreachable=True, accumulate_grad=True
        )
    for leaf, gradient in zip(inputs, before, strict=True) if before is not None else ():
        if leaf.grad is not None and leaf.grad is not gradient:
            leaf.grad = leaf.grad.clone()


def backward_sharded(
    loss: Tensor, seed: Tensor, retain_graph: bool, sharded: FullySharded, also: Sequence[Tensor] = ()
) -> None:
    """Add ``seed`` times a loss's gradient to owned parameters and to ``also``, under ``fully_shard``."""
    graph = Graph(loss)
    for node in graph.nodes:
        sharded.check_known(node)
    others = [leaf for leaf in graph.leaves.values() if not any(leaf is other for other in also)]
    with on_purpose(), sharded.only_owned(others):
        torch.autograd.backward(loss, seed, retain_graph=retain_graph)


def on_purpose() -> AbstractContextManager[None]:
    """Return a context that marks backward passes as gradgate's own, for the checker."""
    from gradgate import events  # slow to import, and rarely needed

    return events.on_purpose()


def as_number(count: Count) -> int | float:
    """Return a count as a number. If it is a tensor, this synchronizes with its device."""
    return _proved(count.item()) if isinstance(count, Tensor) else count


def total(counts: list[Count]) -> int | float:
    """Return the sum of counts. Synchronizes once for each device and dtype of a count."""
    if {*map(type, counts)} <= {int, float}:
        return sum(counts)  # type: ignore[arg-type]
    known = sum(count for count in counts if not isinstance(count, Tensor))
    alike: dict[
        tuple[torch.device, torch.dtype], list[Tensor]
    ] = {}  # stacking others would round some of them
    for count in counts:
        if isinstance(count, Tensor):
            alike.setdefault((count.device, count.dtype), []).append(count)
    return known + sum(_proved(sum(torch.stack(tensors).tolist())) for tensors in alike.values())


def _proved(count: int | float) -> int | float:
    """Return a count that was read from a device; raise CountError if it is nan."""
    if math.isnan(count):
        raise CountError(
            "update: a count on the device is nan. It was passed as nan, or read from a cross entropy with label "
            "smoothing, whose two terms ignore different targets. Pass the number of items in this loss: "
            "count=(labels != -100).sum()."
        )
    return count


def _seed(loss: Tensor, weight: Count) -> Tensor:
    """Return the gradient that starts a backward pass."""
    if isinstance(weight, Tensor):
        return weight.to(loss.dtype).reshape(loss.shape)
    return torch.full_like(loss, weight)


def _rounds(weight: Count, dtype: torch.dtype) -> bool:
    """Return whether a 16-bit dtype would round a weight. A weight on a device is not read."""
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    return isinstance(weight, Tensor) or torch.tensor(weight, dtype=dtype).item() != weight


def _on_device(number: Count, loss: Tensor) -> Tensor:
    """Return a count on a loss's device, in float32 at least. Numbers are created there: copying synchronizes."""
    dtype = torch.promote_types(loss.dtype, torch.float32)
    if isinstance(number, Tensor):
        return number.to(loss.device, dtype)
    return torch.full((), number, device=loss.device, dtype=dtype)


def _numbers(scalars: list[Tensor | float]) -> list[float]:
    """Return scalars as numbers, with one synchronization if all are on one device."""
    tensors = [scalar for scalar in scalars if isinstance(scalar, Tensor)]
    if tensors and len(tensors) == len(scalars) and len({(t.device, t.dtype) for t in tensors}) == 1:
        return [float(value) for value in torch.stack([tensor.reshape(()) for tensor in tensors]).tolist()]
    return [float(scalar) for scalar in scalars]


def _measured(
    values: Sequence[Tensor], count: Count, unit: Count, scale: LossScale | None
) -> Callable[[], SmallBatch | None]:
    """Measure the gradient of a window's first contribution. Only calling the returned function synchronizes."""
    norms = [
        total_norm(on_device) for on_device in by_device(values).values()
    ]  # joining them would synchronize

    def read() -> SmallBatch | None:
        items = as_number(count)
        if not items:
            return None
        loss_scale = None if scale is None else scale.value()
        norm = math.hypot(*map(float, norms)) * as_number(unit) / items / (loss_scale or 1.0)
        return SmallBatch(norm * norm, items)

    return read
