"""Gradients between two acts that are watched: what was set, written or cleared by hand in the meantime."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from torch import Tensor

from gradgate.checker.recording._recorder import Recorder
from gradgate.events import Cleared, Ids
from gradgate.torch_compat import tensor_version


class Gradients:
    """Remembers of each parameter's gradient where it lies and its version, and compares."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[int, tuple[int, int]] = {}  # number: (address, version); absent: None
        self._threads: dict[int, int] = {}  # number: the thread whose backward calls reach it
        self.addresses: dict[int, int] = {}  # address of a gradient: the parameter's number

    def take(self, numbers: Ids) -> None:
        """Take it that this thread trains these: while it does, no other may so much as read their gradients."""
        self._threads.update(dict.fromkeys(numbers, threading.get_ident()))

    def _mine(self) -> Iterator[tuple[int, Tensor]]:
        mine = threading.get_ident()
        for number, tensor in self._recorder.parameters.numbers.alive():
            if tensor.is_leaf and self._threads.get(number, mine) == mine:
                yield number, tensor

    def note(self, numbers: Iterable[int] | None = None) -> None:
        """Take gradients as they are now for what is known of them."""
        parameters = self._recorder.parameters
        alive = self._mine() if numbers is None else parameters.tensors(numbers)
        for number, tensor in alive:
            grad = tensor.grad
            old = self._known.get(number)
            if old is not None:
                self.addresses.pop(old[0], None)
            if grad is None:
                self._known.pop(number, None)
            else:
                self._known[number] = state = _state(grad)
                self.addresses[state[0]] = number

    def compare(self) -> None:
        """Record what was done to gradients since they were noted, where no call told of it."""
        recorder = self._recorder
        parameters = recorder.parameters
        gone, written = [], []
        for number, tensor in self._mine():
            grad = tensor.grad
            known = self._known.get(number)
            if grad is None:
                if known is not None:
                    gone.append(number)
            elif known != _state(grad):
                written.append(number)
        if gone:
            ids = parameters.same(gone)
            recorder.add(Cleared((), ids, ids, to_none=True, by_hand=True))
        for number in written:
            recorder.wrote("gradient", number, site=(), op="assigned")
        self.note((*gone, *written))

    def changed(self, numbers: Iterable[int] | None = None) -> Ids:
        """Return whose gradients are others than was noted, of some parameters or of all."""
        parameters = self._recorder.parameters
        alive = self._mine() if numbers is None else parameters.tensors(numbers)
        return parameters.same(
            number
            for number, tensor in alive
            if (None if tensor.grad is None else _state(tensor.grad)) != self._known.get(number)
        )

    def full(self, numbers: Iterable[int]) -> Ids:
        """Return those that have a gradient now."""
        parameters = self._recorder.parameters
        return parameters.same(
            number for number, tensor in parameters.tensors(numbers) if tensor.grad is not None
        )


def _state(grad: Tensor) -> tuple[int, int]:
    try:
        return grad.data_ptr(), tensor_version(grad)
    except RuntimeError:  # sparse gradients and fake tensors have no address
        return id(grad), tensor_version(grad)
