"""What gradgate's own parts have to tell whoever watches; nothing is made while nobody does."""

from __future__ import annotations

from collections.abc import Callable

from gradgate.events._places import Event

listeners: list[Callable[[Event], None]] = []
"""Who hears what is told: the watchers at work."""


def tell(make: Callable[[], Event]) -> None:
    """Make an event and give it to all who listen, if any do."""
    if listeners:
        event = make()
        for listener in listeners:
            listener(event)
