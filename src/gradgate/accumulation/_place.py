"""Where in a window a backward call stands: in which micro-batch, and for which loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from gradgate.accumulation._windows import expected_length, micro_batches_of
from gradgate.errors import UpdateError

T = TypeVar("T")


class Place:
    """Counts micro-batches and calls, and tells losses apart.

    Attributes:
        in_loop: whether the window is gone through by ``update.micro_batches(...)``.
        expected: how many micro-batches will come, as far as known; else 1.
        micro_batches: those begun so far, the ones of a resumed window included.
        last: whether the current one is known to be the last.
        calls: backward calls in the current micro-batch.
    """

    def __init__(self) -> None:
        self.in_loop = False
        self.expected = 1
        self.micro_batches = 0
        self.last = False
        self.calls = 0
        self._to_skip = 0
        self._unnamed = 0  # the current micro-batch's losses without a name
        self._usual = 0  # as many as the micro-batches before it had

    @property
    def done(self) -> int:
        """The micro-batches whose losses are in the sum."""
        return self.micro_batches - (self.in_loop and not self.calls)

    def resume(self, done: int) -> None:
        """Go on after the micro-batches that a saved window holds."""
        self.micro_batches = self._to_skip = done

    def through(self, window: Iterable[T], begin: Callable[[], None], *, ahead: bool) -> Iterator[T]:
        """Go through a window, calling ``begin`` at each micro-batch; those that are done are skipped.

        With ``ahead`` the next one is drawn before the current one is handed out, to know which is the last.
        """
        if self.in_loop:
            raise UpdateError(
                "micro_batches: this update was already given its micro-batches. One update is one window; "
                "pass all of it at once, for example itertools.chain(labelled, unlabelled)."
            )
        source = micro_batches_of(window)
        self.in_loop = True
        self.expected = expected_length(window)
        return self._counted(self._looking_ahead(source) if ahead else source, begin)

    def _looking_ahead(self, source: Iterator[T]) -> Iterator[T]:
        waiting: list[T] = []
        for following in source:
            if waiting:
                yield waiting.pop()
            waiting.append(following)
        self.last = True
        yield from waiting

    def _counted(self, source: Iterator[T], begin: Callable[[], None]) -> Iterator[T]:
        for number, micro_batch in enumerate(source):
            if number < self._to_skip:
                continue
            begin()
            self.check_losses()
            self.micro_batches = number + 1
            self.calls = self._unnamed = 0
            yield micro_batch

    def name_of(self, given: str | None) -> str:
        """Return a loss's name: its own, or by its order in the micro-batch."""
        if given is not None:
            return given
        if self.calls and not self.in_loop:
            raise UpdateError(
                "backward: a second call without a name, outside update.micro_batches(...): is it another "
                "micro-batch (the mean is over both) or another loss (the two means add)? Loop over "
                "`update.micro_batches(window)`, or give each loss its name: name='fake'."
            )
        self._unnamed += 1
        return "loss" if self._unnamed == 1 else f"loss {self._unnamed}"

    def called(self, times: int) -> None:
        """Note a backward call, the ``times``-th one of its loss."""
        self.calls += 1
        if not self.in_loop:
            self.micro_batches = max(self.micro_batches, times)

    def check_losses(self) -> None:
        """Raise UpdateError if a micro-batch had another number of losses, which only order tells apart."""
        if self._usual and self._unnamed and self._unnamed != self._usual:
            raise UpdateError(
                f"backward: micro-batch {self.micro_batches} had {self._unnamed} losses without a name, those "
                f"before it {self._usual}. Losses are told apart by their order, so one that is left out would be "
                "taken for another. Give each its name: update.backward(loss, name='auxiliary')."
            )
        self._usual = self._usual or self._unnamed
