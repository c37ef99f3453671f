"""The events of a run, in a bounded amount of memory."""

from __future__ import annotations

from collections import deque

from gradgate.events import Event, Gap

_HEAD, _TAIL = 20_000, 10_000
_RECENT = 256  # events among which one is looked for to replace it


class EventBuffer:
    """The first events of a run and the last ones. A :class:`Gap` says how many are missing between."""

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

    def replace(self, event: Event, by: Event | None) -> None:
        """Put another event in the place of a recent one, or remove that."""
        for kept in (self._last, self._first):
            for place in range(len(kept) - 1, max(len(kept) - _RECENT, 0) - 1, -1):
                if kept[place] is event:
                    if by is None:
                        del kept[place]
                        self.count -= 1
                    else:
                        kept[place] = by
                    return

    def events(self) -> tuple[Event, ...]:
        """Return the events that were kept."""
        missing = self.count - len(self._first) - len(self._last)
        gap = (Gap((), missing),) if missing else ()
        return (*self._first, *gap, *self._last)
