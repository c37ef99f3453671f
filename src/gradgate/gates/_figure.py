"""A flow as a Sankey diagram."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from gradgate.errors import OptionError
from gradgate.gates._tree import Branch, tree_of
from gradgate.notebook_tables import NOTHING, USED, WASTED, faint

if TYPE_CHECKING:
    from gradgate.gates._flow import Flow

_MOVED = "moves"


def to_figure(flow: Flow) -> Any:
    """Return the diagram: loss, modules, and what becomes of them; waste is marked."""
    try:
        from plotly import graph_objects  # type: ignore[import-untyped]
    except ImportError as error:
        raise OptionError(
            "flow.figure: plotly is not installed, which draws it. Write pip install 'gradgate[show]', or print "
            "the flow."
        ) from error
    labels: list[str] = ["loss"]
    colors: list[str] = [USED]
    links: dict[str, list[Any]] = {"source": [], "target": [], "value": [], "color": [], "customdata": []}

    def node(label: str, color: str) -> int:
        label = html.escape(label)  # plotly draws some tags
        if label not in labels[1:]:
            labels.append(label)
            colors.append(color)
        return labels.index(label, 1)

    def link(source: int, target: int, value: int, color: str, said: str) -> None:
        for key, one in zip(links, (source, target, value, faint(color), said), strict=True):
            links[key].append(one)

    for branch in tree_of(flow).folded():
        numbers = sum(math.prod(one.shape) for one in branch.parameters) or 1
        color, end = _end(branch)
        name = branch.path or flow.model
        said = f"{html.escape(name)}: {numbers:,} numbers in {len(branch.parameters)} parameters"
        here = node(name, color)
        link(0, here, numbers, color, said)
        link(here, node(end, color), numbers, color, f"{said}<br>{html.escape(end)}")
    return graph_objects.Figure(
        graph_objects.Sankey(
            arrangement="snap",
            node={"label": labels, "color": colors, "pad": 18, "thickness": 16, "line": {"width": 0}},
            link={**links, "hovertemplate": "%{customdata}<extra></extra>"},
        ),
        {"title": {"text": f"Gradient of the loss in {html.escape(flow.model)}"}, "font": {"size": 13}},
    )


def _end(branch: Branch) -> tuple[str, str]:
    """Return colour and words for what becomes of a gradient."""
    one = branch.parameters[0]
    unused = [str(stop) for stop in one.stops if stop.unstepped]
    if not one.reached:
        return NOTHING, "stopped: " + ", ".join(str(stop) for stop in one.stops)
    return (WASTED, f"for nothing: {', '.join(unused)}") if unused else (USED, _MOVED)
