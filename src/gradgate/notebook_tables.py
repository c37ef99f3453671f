"""Small HTML tables for notebooks and pages, without scripts or external files, and Sankey diagrams for plotly."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

# What happened to a gradient. These colours differ on light and dark backgrounds, and for colour-blind readers.
USED, WASTED, LATE, NOTHING = "#2f7fc1", "#d9622b", "#c0418a", "#8d9299"


def faint(color: str, strength: float = 0.4) -> str:
    """Return a colour with transparency."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{strength})"


@dataclass(frozen=True)
class Bar:
    """A share of a whole, drawn as a bar with ``words`` after it. ``color`` is one of the colours above."""

    share: float
    words: str = ""
    color: str = USED


@dataclass(frozen=True)
class Mark:
    """Words after a coloured dot."""

    words: str
    color: str = USED


Cell: TypeAlias = "str | Bar | Mark"

# A notebook is light or dark. Text inherits its colour; lines and heads use transparency.
_TABLE = "border-collapse:collapse;font-size:13px;margin:4px 0"
_CELL = "text-align:left;padding:3px 14px 3px 0;border:0;vertical-align:top"
_HEAD = f"{_CELL};opacity:.65;font-weight:500"
_BAR = "display:inline-block;height:9px"
_LINE = "border-top:1px solid rgba(128,136,146,.35);background:none"


def card(title: str, subtitle: str, rows: Sequence[Sequence[Cell]], *, head: Sequence[str] = ()) -> str:
    """Return a title, a sentence and a table as HTML, with all text escaped."""
    heads = "".join(f'<th style="{_HEAD}">{html.escape(name)}</th>' for name in head)
    cells = ("".join(f'<td style="{_CELL}">{_inside(cell)}</td>' for cell in row) for row in rows)
    lines = "".join(f'<tr style="{_LINE}">{row}</tr>' for row in cells)
    above = f"<b>{html.escape(title)}</b> <span style='opacity:.75'>{html.escape(subtitle)}</span>"
    table = f"{f'<thead><tr>{heads}</tr></thead>' if heads else ''}<tbody>{lines}</tbody>"
    return f'<div class="gradgate">{above}<table style="{_TABLE}">{table}</table></div>'


def _inside(cell: Cell) -> str:
    if isinstance(cell, Bar):
        width = min(max(cell.share, 0.0), 1.0)
        return (
            f'<span style="{_BAR};width:120px;margin-right:8px;background:rgba(128,136,146,.25)">'
            f'<span style="{_BAR};width:{width:.1%};background:{cell.color};vertical-align:top"></span></span>'
            f"{html.escape(cell.words)}"
        )
    if isinstance(cell, Mark):
        dot = f'<span style="color:{cell.color}">●</span> '
        return dot + html.escape(cell.words)
    return html.escape(cell)


class Stream(NamedTuple):
    """A stream of a Sankey diagram, through one node of each column. Links have a paler colour than nodes."""

    names: tuple[str, ...]
    width: float
    color: str
    pale: str
    note: str


def sankey(streams: Iterable[Stream]) -> dict[str, Any]:
    """Return a Sankey diagram for plotly, with all text escaped. The widest stream decides the colour of a node."""
    nodes: dict[tuple[int, str], Counter[str]] = {}  # (column, name) -> width by colour
    links: dict[str, list[Any]] = {"source": [], "target": [], "value": [], "color": [], "customdata": []}
    for stream in streams:
        path = list(enumerate(stream.names))
        for node in path:
            nodes.setdefault(node, Counter())[stream.color] += stream.width  # type: ignore[assignment]
        numbers, note = list(nodes), html.escape(stream.note, quote=False).replace("\n", "<br>")
        for source, target in pairwise(map(numbers.index, path)):
            link = (source, target, stream.width, stream.pale, note)
            for values, value in zip(links.values(), link, strict=True):
                values.append(value)
    boxes = {
        "label": [html.escape(name, quote=False) for _, name in nodes],
        "color": [widths.most_common(1)[0][0] for widths in nodes.values()],
        "pad": 16,
        "thickness": 14,
        "line": {"width": 0},
        "hovertemplate": "%{label}<extra></extra>",
    }
    hover = {"hovertemplate": "%{customdata}<extra></extra>"}
    return {"type": "sankey", "arrangement": "snap", "node": boxes, "link": links | hover}
