"""Names by which a reader tells optimizers apart."""

from __future__ import annotations

from collections import defaultdict

from gradgate.checker.analysis._optimizer_names import optimizer_names
from gradgate.checker.reports._words import place_of
from gradgate.events import Log, OptimizerMade


def distinct_names(log: Log) -> dict[int, str]:
    """Return the name of each optimizer. If several lines construct an optimizer of this name, add the line."""
    names = optimizer_names(log)
    places: dict[int, str] = {}
    for event in log.events:
        if isinstance(event, OptimizerMade) and event.site:
            places.setdefault(event.optimizer, place_of(event.site[0].file, event.site[0].line))
    by_name: dict[str, set[str]] = defaultdict(set)
    for number, place in places.items():
        by_name[names[number]].add(place)
    return {
        number: f"{name} from {places[number]}" if number in places and len(by_name[name]) > 1 else name
        for number, name in names.items()
    }
