"""The events of a run, in a bounded amount of memory."""

from __future__ import annotations

from collections import deque

from gradgate.events import Event, Gap

_HEAD, _TAIL = 20_000, 10_000
_LATELY = 256


class Journal:
    """The first events of a run and the last ones; a :class:`Gap` says how many are left out between."""

    def __init__(self, head: int = _HEAD, tail: int = _TAIL) -> None:
        self._first: list[Event] = []
        self._last: deque[Event] = deque(maxlen=tail)
        self._head = head
        self.count = 0

    def add(self, event: Event) -> None:
        """Append an event."""
        self.count += 1
        if len(self._first) < self._head:
            self._first.append(event)
        else:
            self._last.append(event)

    def replace(self, event: Event, by: Event) -> None:
        """Put another event in the place of one that was added lately."""
        for kept in (self._last, self._first):
            for place in range(len(kept) - 1, max(len(kept) - _LATELY, 0) - 1, -1):
                if kept[place] is event:
                    kept[place] = by
                    return

    def take_back(self, event: Event) -> None:
        """Remove an event that was added lately."""
        for kept in (self._last, self._first):
            for place in range(len(kept) - 1, max(len(kept) - _LATELY, 0) - 1, -1):
                if kept[place] is event:
                    del kept[place]
                    self.count -= 1
                    return

    def events(self) -> tuple[Event, ...]:
        """Return what is kept."""
        left_out = self.count - len(self._first) - len(self._last)
        gap = (Gap((), left_out),) if left_out else ()
        return (*self._first, *gap, *self._last)
