"""Works on the ``.grad`` of many parameters: saves and restores it, notices writes to it, adds and scales it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._counts import by_device
from gradgate.accumulation._precision import Wide, narrow, widen
from gradgate.accumulation._settings import Decay, UpdateSettings
from gradgate.errors import GradientError, OwnerError
from gradgate.ownership import claims
from gradgate.torch_compat import (
    foreach_add_,
    foreach_mul_,
    is_dtensor,
    owns_memory,
    tensor_version,
)

_FULL = frozenset({torch.float32, torch.float64})
_dtype, _grad, _is_cpu = attrgetter("dtype"), attrgetter("grad"), attrgetter("is_cpu")
_scalar = lru_cache(maxsize=16)(partial(torch.full, (), device="cpu"))  # windows with equal counts share it


def check_unowned(parameters: Sequence[Tensor], settings: UpdateSettings) -> None:
    """Raise OwnerError if an open update already owns one of the parameters, or one is listed twice."""
    mine = set(map(id, parameters))
    if len(mine) < len(parameters):
        times = Counter(map(id, parameters))
        twice = list({id(p): p for p in parameters if times[id(p)] > 1}.values())
        raise OwnerError(
            f"update: the optimizers list {settings.names(twice)} twice, so both steps would use the same "
            "gradient. List each parameter once, in one group of one optimizer."
        )
    for others in list(claims.values()):
        shared = [parameter for parameter in others if id(parameter) in mine]
        if shared:
            raise OwnerError(
                f"update: another update that is still open owns {settings.names(shared)}. Both would add to the "
                "same gradients. Leave the other block first, or give each parameter one optimizer. If an "
                "interrupt left a window open, call accumulator.discard()."
            )


class Stamps:
    """The gradients that parameters hold at one moment, and their versions, to notice writes by other code.

    Args:
        parameters: the parameters.
        thorough: stamp every gradient, rather than only the first and the last. Two are enough to notice clearing,
            clipping, unscaling and other backward passes.
        earlier: the stamps of parameters that hold no gradient now. A frozen module has no ``.grad``, but its
            gradients are saved and will be restored.
    """

    def __init__(
        self, parameters: Sequence[Tensor] = (), *, thorough: bool = True, earlier: Stamps | None = None
    ) -> None:
        self._parameters = parameters if thorough else _ends(parameters)
        self._stamps: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        if earlier is not None and earlier._stamps:
            self._stamps = {id(p): earlier._stamps[id(p)] for p in parameters if id(p) in earlier._stamps}
        version = tensor_version.use
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None:
                self._stamps[id(parameter)] = weakref.ref(gradient), version(gradient)

    def holds(self, parameter: Tensor) -> bool:
        """Return whether a parameter's gradient is still the stamped one, and nothing has written to it."""
        gradient, stamp = parameter.grad, self._stamps.get(id(parameter))
        if gradient is None or stamp is None:
            return gradient is None and stamp is None
        return stamp[0]() is gradient and stamp[1] == tensor_version.use(gradient)

    def hold(self) -> bool:
        """Return whether all stamped gradients are unchanged."""
        return all(map(self.holds, self._parameters))


def _ends(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the first and the last parameter that hold a gradient."""
    ends = []
    for order in (parameters, parameters[::-1]):
        for parameter in order:  # a generator here would cost 2 % of a tiny model's update
            if parameter.grad is not None:
                ends.append(parameter)
                break
    return ends


class SavedGradients:
    """The ``.grad`` of the owned parameters before a window; restored if the window is rolled back.

    Zeros that ``clear="zero"`` left stay in ``.grad``; decayed gradients are set aside until the window's own sum
    has been divided. Any other gradient comes from other code, and adding to it would mix two updates.

    Args:
        parameters: the parameters that the accumulator owns.
        settings: the accumulator's settings.
        left: the gradients that the accumulator itself left in ``.grad``.

    Raises:
        GradientError: a parameter holds a gradient that the accumulator did not leave there.
    """

    def __init__(self, parameters: Sequence[Tensor], settings: UpdateSettings, left: Stamps) -> None:
        check_left(parameters, settings, left)
        self.parameters = parameters
        self.before = list(map(_grad, parameters))
        self.wide: list[Wide] = []
        # The decayed gradients to add to the mean, or None if nothing decays.
        decays = isinstance(settings.clear, Decay) and any(g is not None for g in self.before)
        self.carried = self.before if decays else None
        self._clear = settings.clear

    def prepare(self) -> None:
        """Prepare ``.grad`` for a window's sum."""
        if isinstance(self._clear, Decay):
            for parameter in self.parameters:
                parameter.grad = None
        if not _FULL.issuperset(map(_dtype, self.parameters)):
            widen(self.parameters, self.wide)
        if self._clear == "zero":
            for parameter, zeros in zip(self.parameters, self.before, strict=True):
                # `widen` has dropped the zeros together with their dtype.
                if zeros is not None and parameter.grad is None:
                    parameter.grad = zeros.to(parameter.grad_dtype)

    def restore(self) -> None:
        """Restore everything to its state before the window."""
        for parameter in self.parameters:
            parameter.grad = None
        narrow(self.wide)
        for parameter, gradient in zip(self.parameters, self.before, strict=True):
            if gradient is not None and self._clear == "zero":
                gradient.zero_()  # the window added to it in place
            parameter.grad = gradient

    def close(self) -> None:
        """End the window after a step."""
        if self.wide and self._clear == "none":
            narrow(self.wide)
        torch.clear_autocast_cache()  # it holds casts of the old weights, if the whole loop runs under autocast


def check_left(parameters: Sequence[Tensor], settings: UpdateSettings, left: Stamps) -> None:
    """Raise GradientError if a parameter holds a gradient that is not ``left``."""
    strange = [p for p in parameters if p.grad is not None and not left.holds(p)]
    if strange:
        raise GradientError(
            f"update: {len(strange)} of {len(parameters)} parameters already hold a gradient that this "
            f"accumulator did not make: {settings.names(strange)}. Adding to it would mix two updates. "
            "Call optimizer.zero_grad() before the block, or run that backward through "
            "update.backward(...)."
        )


def separate(parameters: Iterable[Tensor]) -> None:
    """Give each gradient memory of its own, because sums are added to and multiplied in place.

    Autograd stores what a backward function returns, without a copy. Two gradients may then be views of one tensor,
    as those of ``a[None] + b[None]``, and what is done to both in place is done twice. A gradient may also be a
    view of a tensor that a custom function keeps.

    Gradients that autograd has already added to have been separated, so only new ones need this. Shards under
    ``fully_shard`` are parts of one tensor that do not overlap.
    """
    owns = owns_memory.use
    for parameter in parameters:
        gradient = parameter.grad
        if type(gradient) is Tensor and not owns(gradient):
            parameter.grad = gradient.clone()


def dense_values(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that hold the gradients' values, to be read or changed in place.

    A sparse gradient is coalesced first (its duplicate rows are added), which changes no value. For a sharded
    gradient, returns this rank's shard.
    """
    values = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            if not gradient.is_coalesced():
                gradient = parameter.grad = gradient.coalesce()
            gradient = gradient.values()
        # The local shard shares the DTensor's memory.
        values.append(gradient if type(gradient) is Tensor else local_part(gradient))
    return values


def local_part(tensor: Any) -> Tensor:
    """Return this rank's shard of a sharded tensor, without copying; return other tensors unchanged."""
    shard: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return shard


def multiply(values: list[Tensor], factor: float | Tensor) -> None:
    """Multiply in place; do nothing if the factor is 1."""
    if not values:
        return  # torch refuses an empty list
    if not isinstance(factor, Tensor):
        if factor != 1:
            # On a CPU, torch would convert a number, or a tensor of another dtype, again for each gradient. The
            # last gradients come first, because the norm has just put them into the cache.
            dtype, *others = {*map(_dtype, values)}
            once = not others and dtype in _FULL and all(map(_is_cpu, values))
            foreach_mul_.use(values[::-1], _scalar(factor, dtype=dtype) if once else factor)
        return
    for device, tensors in by_device(values).items():
        foreach_mul_(tensors, factor.to(device))


def add(parameters: Sequence[Tensor], others: Sequence[Tensor | None], factor: float = 1.0) -> None:
    """Add ``factor * other`` to each ``.grad``. The others are not changed."""
    targets, terms = [], []
    for parameter, other in zip(parameters, others, strict=True):
        if other is None:
            continue
        if parameter.grad is None:
            parameter.grad = (other * factor).to(parameter.grad_dtype or parameter.dtype)
        elif parameter.grad.is_sparse or other.is_sparse:
            # torch adds a sparse tensor to a dense one, not the other way round.
            first, second = parameter.grad, other * factor
            parameter.grad = second + first if first.is_sparse else first + second
        else:
            targets.append(local_part(parameter.grad))
            terms.append(local_part(other))
    if targets:
        foreach_add_(targets, terms, alpha=factor)
