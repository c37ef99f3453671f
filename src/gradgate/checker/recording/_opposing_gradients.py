"""What a backward call adds to gradients that stand already: does it point against them?"""

from __future__ import annotations

from torch import Tensor

from gradgate.checker.recording._recorder import Recorder
from gradgate.events import Opposed

_CLONES = 12  # gradients that are compared with what a backward call adds
_MOST_CLONED = 1 << 16


class Standing:
    """Copies of a few gradients from before a backward call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._copies: list[tuple[int, Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._copies)

    def copy(self, leaves: list[Tensor]) -> None:
        """Keep copies of a few of the gradients that stand already."""
        clones: list[tuple[int, Tensor]] = []
        for leaf in leaves:
            number = self._recorder.parameters.numbers.known(leaf)
            grad = leaf.grad
            if (
                number is not None
                and grad is not None
                and not grad.is_sparse
                and grad.numel() <= _MOST_CLONED
            ):
                clones.append((number, grad.detach().clone()))
        step = max(1, len(clones) // _CLONES)
        self._copies = clones[::step]

    def compare(self) -> None:
        """Record where what was added to a gradient points against what stood there."""
        parameters = self._recorder.parameters
        cosines: list[tuple[int, float]] = []
        for number, old in self._copies:
            tensor = parameters.numbers.get(number)
            grad = tensor.grad if tensor is not None else None
            if grad is None or grad.shape != old.shape:
                continue
            one, added = old.double().reshape(-1), (grad.detach() - old).double().reshape(-1)
            product, first, second = float(one @ added), float(one @ one), float(added @ added)
            if first > 0 and second > 0:
                cosines.append((number, product / (first * second) ** 0.5))
        self._copies = []
        if any(cosine < 0 for _, cosine in cosines):
            self._recorder.add(Opposed(self._recorder.site(), tuple(cosines)))
