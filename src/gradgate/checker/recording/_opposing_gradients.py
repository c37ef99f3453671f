"""Whether a backward call adds gradients that point against those already there."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from gradgate.checker.recording._recorder import Recorder
from gradgate.events import Opposed

_MOST_COPIES = 12
_MOST_ELEMENTS = 1 << 16


class GradientCopies:
    """Copies of a few gradients from before a backward call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._copies: list[tuple[int, Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._copies)

    def copy(self, leaves: Iterable[Tensor]) -> None:
        """Copy a few of the gradients, if there are optimizers whose losses may oppose each other."""
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
        """Record the angles between the copies and what was added since, if one of them is obtuse."""
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
