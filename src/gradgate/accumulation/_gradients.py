"""Works on the ``.grad`` of many parameters: saves and restores it, runs backward passes into it, and scales it."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._counts import by_device
from gradgate.accumulation._precision import Wide, narrow, widen
from gradgate.accumulation._settings import Decay, UpdateSettings
from gradgate.autograd_graph import Graph
from gradgate.errors import GradientError, OwnerError, UpdateError
from gradgate.ownership import claims
from gradgate.ranks import ShardedCoordinator
from gradgate.torch_compat import (
    foreach_add_,
    foreach_mul_,
    is_dtensor,
    reuses_gradients,
    run_backward,
    tensor_version,
    transforming,
)

_FULL = frozenset({torch.float32, torch.float64})
_dtype, _grad, _is_cpu = attrgetter("dtype"), attrgetter("grad"), attrgetter("is_cpu")
_scalar = lru_cache(maxsize=16)(partial(torch.full, (), device="cpu"))  # windows with equal counts share it
_torch_backward = inspect.unwrap(torch.autograd.backward)  # the checker may already have wrapped it


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


class Leftovers:
    """The gradients that an accumulator itself left in ``.grad``: zeros, or decayed ones.

    Any other gradient found before a window comes from other code, and adding to it would mix two updates.
    Leftovers are recognized by identity and version, so a leftover that other code wrote to no longer counts.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def remember(self, parameters: Sequence[Tensor]) -> None:
        """Record the present ``.grad`` of each parameter as a leftover."""
        held = [(id(p), gradient) for p in parameters if (gradient := p.grad) is not None]
        if not held and not self._known:
            return
        # A frozen module has no `.grad` now, but its gradients are saved and will be restored.
        aside = {id(p): self._known[id(p)] for p in parameters if p.grad is None and id(p) in self._known}
        version = tensor_version.use
        self._known = aside | {key: (weakref.ref(gradient), version(gradient)) for key, gradient in held}

    def check(self, parameters: Sequence[Tensor], settings: UpdateSettings) -> list[Tensor | None]:
        """Return every ``.grad``, or raise GradientError for one that the accumulator did not leave there."""
        gradients = list(map(_grad, parameters))
        pairs = zip(parameters, gradients, strict=True)
        strange = [p for p, gradient in pairs if gradient is not None and not self.holds(p, gradient)]
        if strange:
            raise GradientError(
                f"update: {len(strange)} of {len(parameters)} parameters already hold a gradient that this "
                f"accumulator did not make: {settings.names(strange)}. Adding to it would mix two updates. "
                "Call optimizer.zero_grad() before the block, or run that backward through "
                "update.backward(...)."
            )
        return gradients

    def holds(self, parameter: Tensor, gradient: Tensor) -> bool:
        """Return whether the accumulator left this gradient in ``.grad``, and nothing has written to it since."""
        known = self._known.get(id(parameter))
        return known is not None and known[0]() is gradient and known[1] == tensor_version.use(gradient)


class Slots:
    """The ``.grad`` of the owned parameters during one window; restored if the window is rolled back.

    Zeros that ``clear="zero"`` left stay in ``.grad``; decayed gradients are set aside until the window's own sum
    has been divided.
    """

    def __init__(self, parameters: Sequence[Tensor], settings: UpdateSettings, leftovers: Leftovers) -> None:
        self.before = leftovers.check(parameters, settings)
        self.parameters = parameters
        self.wide: list[Wide] = []
        # The decayed gradients to add to the mean, or None if nothing decays.
        decays = isinstance(settings.clear, Decay) and any(g is not None for g in self.before)
        self.carried = self.before if decays else None
        self._settings = settings
        self._leftovers = leftovers

    def take(self) -> None:
        """Prepare ``.grad`` for a window's sum."""
        clear, dtype = self._settings.clear, self._settings.accumulate_dtype
        if isinstance(clear, Decay):
            for parameter in self.parameters:
                parameter.grad = None
        if dtype is not None or not _FULL.issuperset(map(_dtype, self.parameters)):
            widen(self.parameters, dtype, self.wide)
        if clear == "zero":
            for parameter, zeros in zip(self.parameters, self.before, strict=True):
                # `widen` has dropped the zeros together with their dtype.
                if zeros is not None and parameter.grad is None:
                    parameter.grad = zeros.to(parameter.grad_dtype)

    def put_back(self) -> None:
        """Restore everything to its state before the window."""
        for parameter in self.parameters:
            parameter.grad = None
        narrow(self.wide)
        for parameter, gradient in zip(self.parameters, self.before, strict=True):
            if gradient is not None and self._settings.clear == "zero":
                gradient.zero_()  # the window added to it in place
            parameter.grad = gradient
        self._leftovers.remember(self.parameters)

    def close(self) -> None:
        """End the window after a step: the gradients that ``.grad`` now holds are leftovers."""
        if self.wide and self._settings.clear == "none":
            narrow(self.wide)
        torch.clear_autocast_cache()  # it holds casts of the old weights, if the whole loop runs under autocast
        self._leftovers.remember(self.parameters)


def backward(loss: Tensor, seed: Tensor, inputs: tuple[Tensor, ...], retain_graph: bool) -> None:
    """Add ``seed`` times the gradient of ``loss`` to the ``.grad`` of ``inputs``, and to no other tensor.

    Equals ``torch.autograd.backward(loss, seed, inputs=inputs)`` for a scalar and a seed of the same
    shape, dtype and device. But torch's function checks every input for overridden torch functions, which
    takes 0.7 ms for 1,000 parameters: for a tiny model, a third of an update's overhead over a plain loop.

    With CUDA graphs, a new ``.grad`` is cloned, because the graph's next run overwrites its memory.
    """
    before = [each.grad for each in inputs] if reuses_gradients.use() else None
    watched = torch.autograd.backward is not _torch_backward  # other code wraps every backward pass
    if watched or type(loss) is not Tensor or transforming.use():
        with on_purpose():
            torch.autograd.backward(loss, seed, retain_graph=retain_graph, inputs=inputs)
    else:
        run_backward.use(
            (loss,), (seed,), retain_graph, False, inputs, allow_unreachable=True, accumulate_grad=True
        )
    for each, gradient in zip(inputs, before, strict=True) if before is not None else ():
        if each.grad is not None and each.grad is not gradient:
            each.grad = each.grad.clone()


def backward_sharded(
    loss: Tensor, seed: Tensor, retain_graph: bool, sharded: ShardedCoordinator, also: Sequence[Tensor] = ()
) -> None:
    """Add ``seed`` times a loss's gradient to owned parameters and to ``also``, under ``fully_shard``."""
    graph = Graph(loss)
    for node in graph.nodes:
        sharded.check_known(node)
        if node.name() == "_ClippedBackward":
            raise UpdateError(
                "backward: the graph holds gg.clip_gradient. Under fully_shard, gradients are weighted by counts "
                "during the backward pass, so the limit would have a different meaning for each micro-batch. Clip "
                "the whole gradient: Accumulator(..., clip_norm=1.0)."
            )
    others = [leaf for leaf in graph.leaves.values() if not any(leaf is each for each in also)]
    with on_purpose(), sharded.only_owned(others):
        torch.autograd.backward(loss, seed, retain_graph=retain_graph)


def separate(parameters: Iterable[Tensor]) -> None:
    """Give each gradient memory of its own.

    Autograd may store views of one tensor in two ``.grad``, for example those of ``a[None] + b[None]``. Whatever is
    done to both in place, even the next addition, would then be done twice.
    """
    pointers: set[int] = set()
    for parameter in parameters:
        gradient = parameter.grad
        if type(gradient) is Tensor and gradient.layout is torch.strided:
            pointer = gradient.data_ptr()
            if pointer in pointers:
                parameter.grad = gradient.clone()
            pointers.add(pointer)


def on_purpose() -> AbstractContextManager[None]:
    """Return a context that marks backward passes as gradgate's own, for the checker."""
    from gradgate import events  # slow to import, and rarely needed

    return events.on_purpose()


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
