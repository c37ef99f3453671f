"""The timeline of a window: forward and backward pass of each micro-batch, then the optimizer's update."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from gradgate.checker.analysis import Share, StepWindow, of_window
from gradgate.checker.reports.page._drawing import USED
from gradgate.checker.reports.page._run_view import Figure, RunView, figure, rows
from gradgate.events import Span

_MOST_ROWS = 24
_UPDATE = "update"
_COLORS = {
    "load": "#b5bac2",
    "forward": "#63a8dd",
    "backward": USED,
    "clear": "#9a8fd1",
    "clip": "#d6a324",
    "step": "#2e9e6f",
    "schedule": "#7fbf9b",
    "exchange": "#7a4fbf",
}


@dataclass(frozen=True)
class Phase:
    """A bar of the timeline, in the row of a micro-batch or of the update. Times are relative to the window."""

    row: str
    doing: str
    start: float
    seconds: float
    weight: str = ""  # the weight of the micro-batch's loss in the update, in words


@dataclass(frozen=True)
class TimedWindow:
    """A window and its spans."""

    window: StepWindow
    began: float
    spans: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """The time from the end of the previous step to the end of this window's step."""
        return self.spans[-1].end - self.began


def typical(view: RunView) -> TimedWindow | None:
    """Return the window of median duration. The first two are left out: the watcher does most of its work there."""
    timed = _timed(view)
    timed = timed[2:] if len(timed) > 4 else timed
    # The weights of micro-batches are known only if the watcher read their graphs.
    timed = [each for each in timed if all(view.run.backward(n).seen for n in each.window.micro)] or timed
    if not timed:
        return None
    middle = median(each.seconds for each in timed)
    return min(timed, key=lambda each: abs(each.seconds - middle))


def _timed(view: RunView) -> list[TimedWindow]:
    """Return the windows between two recorded steps, whichever optimizers made them."""
    windows = {window.step: window for window in view.run.windows if window.micro}
    found, began, inside = [], None, []
    for span in view.log.spans:
        inside.append(span)
        if span.doing != "step":
            continue
        # span.at counts the events before the step began. The step's event comes next, or soon after.
        number = next((n for n in range(span.at, span.at + 4) if n in windows), None)
        backwards = sum(each.doing == "backward" for each in inside)
        if number is not None and began is not None and backwards == len(windows[number].micro):
            found.append(TimedWindow(windows[number], began, tuple(inside)))
        began, inside = span.end, []
    return found


def phases(view: RunView, timed: TimedWindow) -> list[Phase]:
    """Return the phases of a window. Unrecorded time before a backward call counts as forward."""
    rows = of_window(view.run, timed.window, list(timed.window.micro)) or []
    weights = [", ".join(map(_weight, row)) for row in rows]
    count = len(timed.window.micro)
    found: list[Phase] = []
    now, micro = timed.began, 0
    for span in timed.spans:
        # The clock, which leaves out the watcher's own time, may go back by a microsecond.
        start = max(span.start, now)
        end = max(span.end, start)
        name = f"micro-batch {micro + 1}"
        weight = weights[micro] if micro < min(count, len(weights)) else ""
        if micro < count:
            found.append(Phase(name, "forward", now - timed.began, start - now, weight))
        row = name if micro < count and span.doing in ("load", "backward") else _UPDATE
        weight = weight if span.doing == "backward" else ""
        found.append(Phase(row, span.doing, start - timed.began, end - start, weight))
        micro += span.doing == "backward"
        now = end
    return found


def _weight(share: Share) -> str:
    items = f" of {share.items:g} items" if share.items else ""
    if share.factor is None:
        return f"sum{items} × {share.per_item:.3g}"
    return f"mean{items} × {share.factor:.3g}"


def draw(view: RunView) -> Figure | None:
    """Return the timeline of a typical window, or None if none was timed."""
    timed = typical(view)
    if timed is None:
        return None
    found = phases(view, timed)
    names = list(dict.fromkeys(phase.row for phase in found if phase.row != _UPDATE))
    if len(names) > _MOST_ROWS:
        names = [*names[: _MOST_ROWS - 1], names[-1]]
    names.append(_UPDATE)
    weights = {phase.row: phase.weight for phase in found if phase.weight}
    labels = [f"{name}<br><span style='font-size:11px'>{weights.get(name, '')}</span>" for name in names]
    unit, scale = ("ms", 1e3) if timed.seconds < 2 else ("s", 1.0)
    traces = []
    for doing, color in _COLORS.items():
        parts = [phase for phase in found if phase.doing == doing and phase.row in names]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": doing,
                "y": [names.index(phase.row) for phase in parts],
                "base": [phase.start * scale for phase in parts],
                "x": [phase.seconds * scale for phase in parts],
                "customdata": [f"{phase.row}<br>{phase.weight}" for phase in parts],
                "marker": {"color": color, "line": {"width": 0}},
                "hovertemplate": f"{doing}: %{{x:.3g}} {unit}<extra>%{{customdata}}</extra>",
            }
        )
    return figure(
        [trace for trace in traces if trace["x"]],
        height=90 + 40 * len(names),
        barmode="overlay",
        bargap=0.4,
        legend_above=True,
        xaxis={"title": {"text": unit}, "automargin": True, "fixedrange": True, "zeroline": False},
        yaxis=rows(labels),
    )
