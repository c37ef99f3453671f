"""Gradients between two watched calls: clearing, clipping, and what was assigned or cleared by hand meanwhile."""

from __future__ import annotations

import functools
import math
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from torch import Tensor, nn

from gradgate.checker.recording._creation import parameters_of
from gradgate.checker.recording._fields import is_a, items_of, number_of
from gradgate.checker.recording._modules import parameters_in
from gradgate.checker.recording._patches import Around, tracing
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import is_sharded
from gradgate.checker.recording._samples import full_rows
from gradgate.events import Cleared, Clipped, Ids
from gradgate.torch_compat import tensor_version


class Gradients:
    """Remembers the address and version of each gradient. Watches ``zero_grad`` and ``clip_grad_*_``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[
            int, tuple[int, int]
        ] = {}  # number: (address, version); absent if the gradient is None
        self._threads: dict[int, int] = {}  # number: the thread whose backward calls reach it
        self.masked: dict[int, Tensor] = {}  # number: rows whose gradient a hook of the user's has zeroed
        self.addresses: dict[int, int] = {}  # address of a gradient: the parameter's number

    def zero_grad(self, owner: Any, set_to_none: bool = True) -> Around:
        """Record that an optimizer's or a module's gradients were cleared."""
        recorder = self._recorder
        self.compare()
        ids = recorder.ids(parameters_in(owner) if is_a(owner, nn.Module) else parameters_of(owner))
        recorder.add(Cleared(recorder.site(), ids, self._full(ids), bool(set_to_none)))
        try:
            yield
        finally:
            self.note(ids)

    def clip_norm(self, parameters: Any, max_norm: Any, *_: Any, **__: Any) -> Around:
        """Record a call of ``clip_grad_norm_``."""
        yield from self._clip(parameters, max_norm, "norm")

    def clip_value(self, parameters: Any, clip_value: Any, *_: Any, **__: Any) -> Around:
        """Record a call of ``clip_grad_value_``."""
        yield from self._clip(parameters, clip_value, "value")

    def _clip(self, given: Any, limit: Any, kind: Literal["norm", "value"]) -> Around:
        recorder = self._recorder
        self.compare()
        tensors = [
            each for each in ([given] if is_a(given, Tensor) else items_of(given)) if is_a(each, Tensor)
        ]
        full = [tensor for tensor in tensors if tensor.grad is not None]
        if recorder.looking:
            full = [tensor for tensor in full if is_sharded(tensor) or _any(tensor.grad)]
        ids, has_gradient = recorder.ids(tensors), recorder.ids(full)
        norm = yield
        asked = recorder.looking and is_a(norm, Tensor) and not is_sharded(norm)
        seen, most = float(norm) if asked else None, number_of(limit)
        most = math.nan if most is None else most
        recorder.add(Clipped(recorder.site(), ids, has_gradient, len(tensors), seen, most, kind))
        self.note(ids)

    def register_hook(self, original: Any, tensor: Tensor, hook: Any) -> Any:
        """Watch which rows of a parameter's gradient a hook sets to zero."""
        recorder = self._recorder
        number: int | None = None
        if recorder.active and not tracing():
            with recorder.working():
                number = recorder.parameters.number(tensor) if tensor.is_leaf else None
        if number is None:
            return original(tensor, hook)

        def watched(gradient: Tensor) -> Any:
            if not recorder.looking or not recorder.active:
                return hook(gradient)
            before: Tensor | None = None
            with recorder.working():
                before = full_rows(gradient)
            result = hook(gradient)
            with recorder.working():
                after = full_rows(gradient if result is None else result)
                if before is not None and after is not None and before.shape == after.shape:
                    zeroed, known = before & ~after, self.masked.get(number)
                    self.masked[number] = zeroed if known is None else zeroed | known
            return result

        named = type(hook) in (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
        return original(tensor, functools.wraps(hook)(watched) if named else watched)

    def take(self, numbers: Ids) -> None:
        """Note that this thread trains these parameters: until another does, no other may read their gradients."""
        self._threads.update(dict.fromkeys(numbers, threading.get_ident()))

    def _mine(self) -> Iterator[tuple[int, Tensor]]:
        mine = threading.get_ident()
        for number, tensor in self._recorder.parameters.numbers.alive():
            if tensor.is_leaf and self._threads.get(number, mine) == mine:
                yield number, tensor

    def note(self, numbers: Iterable[int] | None = None) -> None:
        """Remember gradients as they are now: those of some parameters, or all."""
        alive = self._mine() if numbers is None else self._recorder.parameters.tensors(numbers)
        known, addresses = self._known, self.addresses
        for number, tensor in alive:
            grad, old = tensor.grad, known.get(number)
            state = None if grad is None else _state(grad)
            if old is not None and (state is None or state[0] != old[0]):
                addresses.pop(old[0], None)
            if state is None:
                known.pop(number, None)
            else:
                known[number] = state
                addresses[state[0]] = number

    def compare(self) -> None:
        """Record what was done to gradients since they were noted, if no watched call did it."""
        gone, written = [], []
        for number, tensor in self._mine():
            grad, known = tensor.grad, self._known.get(number)
            if grad is None:
                if known is not None:
                    gone.append(number)
            elif known != _state(grad):
                written.append(number)
        if gone:
            ids = self._recorder.parameters.same(gone)
            self._recorder.add(Cleared((), ids, ids, to_none=True, by_hand=True))
        for number in written:
            self._recorder.wrote("gradient", number, site=(), op="assigned")
        self.note((*gone, *written))

    def changed(self, numbers: Iterable[int] | None = None) -> Ids:
        """Return the parameters whose gradient isn't as noted, of some or of all."""
        parameters = self._recorder.parameters
        alive = self._mine() if numbers is None else parameters.tensors(numbers)
        return parameters.same(
            number
            for number, tensor in alive
            if (None if tensor.grad is None else _state(tensor.grad)) != self._known.get(number)
        )

    def _full(self, numbers: Iterable[int]) -> Ids:
        parameters = self._recorder.parameters
        return parameters.same(
            number for number, tensor in parameters.tensors(numbers) if tensor.grad is not None
        )


def _state(grad: Tensor) -> tuple[int, int]:
    try:
        return grad.data_ptr(), tensor_version.use(grad)
    except RuntimeError:  # sparse and fake tensors have no address
        return id(grad), tensor_version.use(grad)


def _any(gradient: Any) -> bool:
    return gradient.is_sparse or bool(gradient.detach().any())
