"""Where the time of an update goes: bars of the median seconds that each part takes."""

from __future__ import annotations

from collections import Counter
from statistics import median

from gradgate.checker.reports.page._run_view import Figure, RunView, figure

_FEWEST = 3  # updates, for a median
_WARM = 2  # first updates that are left out of longer runs: the watcher does most of its work there
_COLORS = {
    "load": "#b5bac2",
    "forward": "#63a8dd",
    "backward": "#2f7fc1",
    "clear": "#9a8fd1",
    "clip": "#d6a324",
    "step": "#2e9e6f",
    "schedule": "#7fbf9b",
    "exchange": "#7a4fbf",
}


def updates(view: RunView) -> list[Counter[str]]:
    """Return the seconds of each part, per update: from the end of one step to the end of the next.

    Unrecorded time before a backward call counts as forward.
    """
    found: list[Counter[str]] = []
    spent, unrecorded = Counter[str](), 0.0
    now: float | None = None
    for span in view.log.spans:
        # The clock, which leaves out the watcher's own time, may go back by a microsecond.
        unrecorded += 0.0 if now is None else max(span.start - now, 0.0)
        spent[span.doing] += max(span.end - span.start, 0.0)  # type: ignore[assignment]
        if span.doing == "backward":
            spent["forward"] += unrecorded  # type: ignore[assignment]
            unrecorded = 0.0
        if span.doing == "step":
            found.append(spent)
            spent, unrecorded = Counter(), 0.0
        now = span.end
    return found[_WARM:] if len(found) >= _WARM + _FEWEST else found


def draw(view: RunView) -> list[Figure]:
    """Return the figure of bars, if enough updates were timed."""
    timed = updates(view)
    if len(timed) < _FEWEST:
        return []
    seconds = {name: median(spent[name] for spent in timed) for name in _COLORS}
    shown = {name: value for name, value in seconds.items() if value > 0}
    unit, scale = ("ms", 1e3) if sum(shown.values()) < 2 else ("s", 1.0)
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(shown),
        "x": [value * scale for value in shown.values()],
        "marker": {"color": [_COLORS[name] for name in shown]},
        "hovertemplate": f"%{{y}}: %{{x:.3g}} {unit}<extra>median of {len(timed)} updates</extra>",
    }
    title = f"{unit}, median of {len(timed):,} updates"
    return [
        figure(
            [bars],
            height=90 + 30 * len(shown),
            xaxis={"title": {"text": title}, "fixedrange": True},
            yaxis={"autorange": "reversed", "automargin": True, "fixedrange": True},
        )
    ]
