"""The colours of gradients, and Sankey diagrams for plotly."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

# What happened to a gradient. These colours differ on light and dark backgrounds, and for colour-blind readers.
USED, WASTED, LATE, NOTHING = "#2f7fc1", "#d9622b", "#c0418a", "#8d9299"


def faint(color: str, strength: float = 0.4) -> str:
    """Return a colour with transparency."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{strength})"


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
