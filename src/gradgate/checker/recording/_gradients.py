"""Watch how gradients are cleared, clipped, and changed by the user between two watched calls."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any, TypeAlias

from torch import Tensor, nn

from gradgate.checker.recording._creation import parameters_of
from gradgate.checker.recording._patches import Around
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import is_sharded
from gradgate.checker.recording._user_objects import is_a, number_of, parameters_in, tensors_in
from gradgate.events import Cleared, Clipped, Ids, Opposed
from gradgate.torch_compat import tensor_version

_MOST_COPIES = 12  # gradients compared with the gradient that a backward call adds
_MOST_ELEMENTS = 1 << 16

_State: TypeAlias = tuple[int, int]  # address and version of a gradient


class Gradients:
    """Remembers the address and version of each gradient. Watches ``zero_grad`` and ``clip_grad_*_``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[int, _State] = {}  # parameter number -> state; no entry if the gradient is None
        self._threads: dict[int, int] = {}  # parameter number -> thread that trains the parameter
        self._users: set[int] = set()  # the threads in _threads
        self._taken: tuple[Ids, int] = frozenset(), 0  # the last parameters and thread entered in _threads
        # address of a gradient, or its id if it has none -> parameter number
        self.addresses: dict[int, int] = {}

    def number_of(self, gradient: Tensor) -> int | None:
        """Return the parameter whose gradient this tensor was when gradients were last noted, or None."""
        try:
            return self.addresses.get(gradient.data_ptr())
        except RuntimeError:
            return self.addresses.get(id(gradient))

    def zero_grad(self, owner: Any, set_to_none: bool = True) -> Around:
        """Record that an optimizer's or a module's gradients were cleared."""
        recorder = self._recorder
        self.compare()
        ids = recorder.parameters.ids((parameters_in if is_a(owner, nn.Module) else parameters_of)(owner))
        full = self.held(ids)
        recorder.add(Cleared(recorder.site(), ids, full))
        if set_to_none:  # after the call, no gradient is left to note
            for number in full:
                self._forget(number)
            return
        try:
            yield
        finally:
            self.note(ids)

    def clip(
        self, parameters: Any, max_norm: Any = None, *_: Any, clip_value: Any = None, **__: Any
    ) -> Around:
        """Record a call of ``clip_grad_norm_`` or ``clip_grad_value_``."""
        recorder = self._recorder
        self.compare()
        tensors = tensors_in(parameters)
        full = [tensor for tensor in tensors if tensor.grad is not None]
        if recorder.looking:
            full = [tensor for tensor in full if is_sharded(tensor) or _any(tensor.grad)]
        ids, has_gradient = recorder.parameters.ids(tensors), recorder.parameters.ids(full)
        norm = yield
        asked = recorder.looking and is_a(norm, Tensor) and not is_sharded(norm)
        seen, limit = float(norm) if asked else None, number_of(clip_value if max_norm is None else max_norm)
        limit = limit if limit is not None and math.isfinite(limit) else None
        recorder.add(Clipped(recorder.site(), ids, has_gradient, len(tensors), seen, limit))
        self.note(ids)

    def take(self, numbers: Ids) -> None:
        """Note that this thread trains these parameters. Only the last thread to do so reads their gradients."""
        taken = numbers, threading.get_ident()
        if taken != self._taken:
            self._taken = taken
            self._threads.update(dict.fromkeys(*taken))
            self._users.add(taken[1])

    def note(self, numbers: Iterable[int] | None = None) -> dict[int, _State | None]:
        """Note the current state of some gradients, by default those of the parameters that this thread trains.

        Returns the new state of each gradient that changed, by parameter number. The state is None if the
        gradient is None.
        """
        tensors, known, addresses = self._recorder.parameters.numbers.refs, self._known, self.addresses
        mine = threading.get_ident()
        threads = self._threads if numbers is None and len(self._users) > 1 else {}
        changes: dict[int, _State | None] = {}
        for number in list(tensors) if numbers is None else numbers:  # a hot loop: it avoids function calls
            ref = tensors.get(number)
            tensor = None if ref is None else ref()
            if tensor is None:
                tensors.pop(number, None)
                continue
            if not tensor.is_leaf or threads.get(number, mine) != mine:
                continue
            grad, old = tensor.grad, known.get(number)
            state: _State | None = None
            if grad is not None:
                try:
                    state = grad.data_ptr(), tensor_version.use(grad)
                except RuntimeError:  # sparse and fake tensors have no address
                    state = id(grad), tensor_version.use(grad)
            if state == old:
                continue
            changes[number] = state
            if old is not None and (state is None or state[0] != old[0]):
                self._forget(number)
            if state is not None:
                known[number] = state
                addresses[state[0]] = number
        return changes

    def _forget(self, number: int) -> None:
        address = self._known.pop(number)[0]
        if self.addresses.get(address) == number:  # another gradient may have reused the address
            del self.addresses[address]

    def compare(self) -> None:
        """Record gradients that changed since they were last noted although no watched call changed them."""
        changes = self.note()
        if not changes:
            return
        gone = self._recorder.parameters.same(number for number, state in changes.items() if state is None)
        if gone:
            self._recorder.add(Cleared((), gone, gone, by_hand=True))
        for number, state in changes.items():
            if state is not None:
                self._recorder.wrote("gradient", number, site=(), op="assigned")

    def held(self, ids: Ids) -> Ids:
        """Return the parameters among ``ids`` that had a gradient when gradients were last noted."""
        return self._recorder.parameters.same(ids.intersection(self._known))


class GradientCopies:
    """Copies of a few gradients, made before a backward call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._copies: list[tuple[int, Tensor]] = []

    def copy(self, leaves: Iterable[Tensor]) -> None:
        """Copy a few gradients if there are several optimizers, because their losses may oppose each other."""
        if len(self._recorder.optimizers) < 2:
            return
        known = self._recorder.parameters.numbers.known
        grads = [
            (number, leaf.grad)
            for leaf in leaves
            if (number := known(leaf)) is not None
            and leaf.grad is not None
            and not leaf.grad.is_sparse
            and leaf.grad.numel() <= _MOST_ELEMENTS
        ]
        step = max(1, len(grads) // _MOST_COPIES)
        self._copies = [(number, grad.detach().clone()) for number, grad in grads[::step]]

    def compare(self) -> None:
        """Record the angle between each copy and the gradient added after it, if any angle is above 90 degrees."""
        numbers = self._recorder.parameters.numbers
        cosines: list[tuple[int, float]] = []
        for number, before in self._copies:
            tensor = numbers.get(number)
            grad = tensor.grad if tensor is not None else None
            if grad is None or grad.shape != before.shape:
                continue
            old, added = before.double().reshape(-1), (grad.detach() - before).double().reshape(-1)
            squares = float(old @ old) * float(added @ added)
            if squares > 0:
                cosines.append((number, float(old @ added) / squares**0.5))
        self._copies = []
        if any(cosine < 0 for _, cosine in cosines):
            self._recorder.add(Opposed(self._recorder.site(), tuple(cosines)))


def _any(gradient: Any) -> bool:
    return gradient.is_sparse or bool(gradient.detach().any())
