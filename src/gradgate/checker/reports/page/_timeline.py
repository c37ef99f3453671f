"""A window as it went: each micro-batch forward and backward, and what came between the last and the step."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from gradgate.checker.analysis import Share, Window, of_window
from gradgate.checker.reports.page._seen import Seen
from gradgate.checker.reports.page._theme import DOING, figure
from gradgate.events import Span

_MOST_ROWS = 24
_UPDATE = "update"


@dataclass(frozen=True)
class Bar:
    """A stretch of a window, in seconds from its beginning, in the row of a micro-batch or of the update."""

    row: str
    doing: str
    start: float
    seconds: float
    said: str = ""


@dataclass(frozen=True)
class Timed:
    """A window and the spans in it."""

    window: Window
    began: float
    spans: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """From the end of what was before to the end of its step."""
        return self.spans[-1].end - self.began


def draw(seen: Seen) -> Any | None:
    """Return the timeline of the window of median length; None where none was timed."""
    chosen = typical(seen)
    return None if chosen is None else _figure(bars(seen, chosen))


def typical(seen: Seen) -> Timed | None:
    """Return the window of median length, the first ones left out: they are looked at most closely."""
    timed = _timed(seen)
    timed = timed[2:] if len(timed) > 4 else timed
    # Later windows are not looked into: what their micro-batches count is not known.
    timed = [one for one in timed if all(seen.run.backward(n).seen for n in one.window.micro)] or timed
    if not timed:
        return None
    middle = median(one.seconds for one in timed)
    return min(timed, key=lambda one: abs(one.seconds - middle))


def _timed(seen: Seen) -> list[Timed]:
    """Return windows whose spans are known: those between two steps, whichever optimizer made them."""
    windows = {window.step: window for window in seen.run.windows if window.micro}
    found, began, inside = [], None, []
    for span in seen.log.spans:
        inside.append(span)
        if span.doing != "step":
            continue
        # The step's event comes next behind what had been recorded when it began.
        number = next((n for n in range(span.at, span.at + 4) if n in windows), None)
        backwards = sum(one.doing == "backward" for one in inside)
        if number is not None and began is not None and backwards == len(windows[number].micro):
            found.append(Timed(windows[number], began, tuple(inside)))
        began, inside = span.end, []
    return found


def bars(seen: Seen, timed: Timed) -> list[Bar]:
    """Return what is drawn: what lies before a backward call and is nothing else counts as the forward pass."""
    said = _weights(seen, timed.window)
    left = len(timed.window.micro)
    found: list[Bar] = []
    now, micro = timed.began, 0
    for span in timed.spans:
        row = f"micro-batch {micro + 1}" if micro < left and span.doing in ("load", "backward") else _UPDATE
        weight = said[micro] if micro < min(left, len(said)) else ""
        if micro < left:
            found.append(
                Bar(f"micro-batch {micro + 1}", "forward", now - timed.began, span.start - now, weight)
            )
        said_too = weight if span.doing == "backward" else ""
        found.append(Bar(row, span.doing, span.start - timed.began, span.end - span.start, said_too))
        micro += span.doing == "backward"
        now = span.end
    return found


def _weights(seen: Seen, window: Window) -> list[str]:
    rows = of_window(seen.run, window, list(window.micro))
    return [", ".join(map(_said, row)) for row in rows] if rows else []


def _said(share: Share) -> str:
    items = f" of {share.items:g} items" if share.items else ""
    if share.factor is None:
        return f"sum{items} × {share.per_item:.3g}"
    return f"mean{items} × {share.factor:.3g}"


def _figure(found: list[Bar]) -> Any:
    rows = list(dict.fromkeys(bar.row for bar in found if bar.row != _UPDATE))
    if len(rows) > _MOST_ROWS:
        rows = [*rows[: _MOST_ROWS - 1], rows[-1]]
    rows = [*rows, _UPDATE]
    longest = max(bar.start + bar.seconds for bar in found)
    unit, scale = ("ms", 1e3) if longest < 2 else ("s", 1.0)
    traces = []
    for doing in DOING:
        mine = [bar for bar in found if bar.doing == doing and bar.row in rows]
        if mine:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": doing,
                    "y": [bar.row for bar in mine],
                    "base": [bar.start * scale for bar in mine],
                    "x": [bar.seconds * scale for bar in mine],
                    "marker": {"color": DOING[doing], "line": {"width": 0}},
                    "customdata": [bar.said for bar in mine],
                    "text": [bar.said if doing == "backward" else "" for bar in mine],
                    "textposition": "none",
                    "hovertemplate": f"{doing}: %{{x:.3g}} {unit}<br>%{{customdata}}<extra>%{{y}}</extra>",
                }
            )
    weights = {bar.row: bar.said for bar in found if bar.said}
    return figure(
        traces,
        height=90 + 40 * len(rows),
        barmode="overlay",
        bargap=0.4,
        legend={"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
        margin={"l": 8, "r": 12, "t": 36, "b": 8},
        xaxis={"title": {"text": unit}, "automargin": True, "fixedrange": True, "zeroline": False},
        yaxis={
            "categoryorder": "array",
            "categoryarray": rows[::-1],
            "automargin": True,
            "ticks": "",
            "fixedrange": True,
            "tickvals": rows,
            "ticktext": [
                f"{row}<br><span style='font-size:11px'>{weights[row]}</span>" if weights.get(row) else row
                for row in rows
            ],
        },
    )
