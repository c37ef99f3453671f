"""Colours that can be told apart on light and dark ground, also by those who see few colours."""

from __future__ import annotations

from typing import Any

from gradgate.notebook_tables import LATE, NOTHING, USED, WASTED

FATES = {"used": USED, "wasted": WASTED, "late": LATE, "none": NOTHING}
DOING = {
    "load": "#b5bac2",
    "forward": "#63a8dd",
    "backward": USED,
    "clear": "#9a8fd1",
    "clip": "#d6a324",
    "step": "#2e9e6f",
    "schedule": "#7fbf9b",
    "exchange": "#7a4fbf",
}
LINES = (
    *("#2f7fc1", "#d9622b", "#2e9e6f", "#c0518f", "#d6a324", "#7a6cc4", "#3fa9b5"),
    *("#9c6b4a", "#6f7d8c", "#b0413e", "#5f9e2f", "#a26bb0", "#4a6fa5", "#c98a5e"),
)


def figure(data: list[Any], **layout: Any) -> Any:
    """Return a plotly figure without colours of its own for text and ground: the page gives it those."""
    from plotly import graph_objects  # type: ignore[import-untyped]

    return graph_objects.Figure(data, {**_plain(), "margin": {"l": 8, "r": 12, "t": 12, "b": 8}, **layout})


def stacked(traces: list[dict[str, Any]], titles: list[str], heights: list[float], below: str) -> Any:
    """Return traces in rows, one under another, the rows as high as is said, in pixels; x is the same for all."""
    from plotly.subplots import make_subplots  # type: ignore[import-untyped]

    gap = 46.0
    whole = sum(heights) + gap * (len(heights) - 1)
    drawn = make_subplots(
        rows=len(traces),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=gap / whole if len(traces) > 1 else 0,
        row_heights=heights,
        subplot_titles=titles,
    )
    for row, trace in enumerate(traces, start=1):
        drawn.add_trace(trace, row=row, col=1)
    drawn.update_yaxes(autorange="reversed", automargin=True, ticks="", fixedrange=True)
    drawn.update_xaxes(ticks="", fixedrange=True, tickformat="d", showgrid=False)
    drawn.update_yaxes(showgrid=False)
    drawn.update_xaxes(title_text=below, row=len(traces), col=1)
    drawn.update_annotations(x=0, xanchor="left", font_size=12)
    top = 28
    return drawn.update_layout(
        **_plain(), height=whole + top + 48, margin={"l": 8, "r": 12, "t": top, "b": 48}, showlegend=False
    )


def _plain() -> dict[str, Any]:
    return {
        "template": {},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left"},
    }
