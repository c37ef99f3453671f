"""Figures as plotly reads them, without colours for text and background: the page supplies those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Figure: TypeAlias = "dict[str, Any]"


def figure(data: Sequence[Any], **layout: Any) -> Figure:
    """Return a figure of traces."""
    plain = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left"},
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
    }
    return {"data": list(data), "layout": plain | layout}


def bars(name: str, color: Any, unit: str, rows: Sequence[tuple[str, float, float, str]]) -> dict[str, Any]:
    """Return a trace of horizontal bars, each a row's name, a start, a length and a note for the mouse."""
    names, starts, lengths, notes = zip(*rows, strict=True)
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": names,
        "base": starts,
        "x": lengths,
        "customdata": notes,
        "marker": {"color": color, "line": {"width": 0}},
        "hovertemplate": f"{name}: %{{x:.3g}} {unit}<br>%{{customdata}}<extra>%{{y}}</extra>",
    }


def bar_figure(
    data: Sequence[Any], unit: str, rows: dict[str, str], row_height: int, **layout: Any
) -> Figure:
    """Return a figure of bars, with ``rows`` (names and their labels) from top to bottom."""
    return figure(
        data,
        height=90 + row_height * len(rows),
        barmode="overlay",
        bargap=0.3,
        legend={"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
        margin={"l": 8, "r": 12, "t": 36, "b": 8},
        xaxis={"title": {"text": unit}, "automargin": True, "fixedrange": True, "rangemode": "tozero"},
        yaxis={
            "categoryorder": "array",
            "categoryarray": list(rows)[::-1],
            "tickvals": list(rows),
            "ticktext": list(rows.values()),
            "automargin": True,
            "ticks": "",
            "fixedrange": True,
        },
        **layout,
    )


def dotted(axis: str, value: float, color: str) -> dict[str, Any]:
    """Return a dotted line across the figure, where ``axis`` ("x" or "y") has a value."""
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": value, f"{axis}1": value, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", **ends, "line": {"dash": "dot", "width": 2, "color": color}}


def stacked(traces: dict[str, dict[str, Any]], heights: Sequence[float], x_title: str) -> Figure:
    """Return traces one below another, each with its title and a height in pixels, over one x axis."""
    gap, top, bottom = 46.0, 28, 48
    total = sum(heights) + gap * (len(heights) - 1)
    upper, data, axes, titles = 1.0, [], {}, []
    for number, ((title, trace), height) in enumerate(zip(traces.items(), heights, strict=True), start=1):
        axis, lower = str(number) if number > 1 else "", max(0.0, upper - height / total)
        data.append({**trace, "xaxis": "x", "yaxis": f"y{axis}"})
        axes[f"yaxis{axis}"] = {
            "domain": [lower, upper],
            "autorange": "reversed",
            "automargin": True,
            "ticks": "",
            "fixedrange": True,
            "showgrid": False,
        }
        place = {"x": 0, "xref": "paper", "xanchor": "left", "y": upper, "yref": "paper", "yanchor": "bottom"}
        titles.append({"text": title, "showarrow": False, "font": {"size": 12}, **place})
        upper = lower - gap / total
    x = {"title": {"text": x_title}, "ticks": "", "fixedrange": True, "tickformat": "d", "showgrid": False}
    return figure(
        data,
        height=total + top + bottom,
        margin={"l": 8, "r": 12, "t": top, "b": bottom},
        annotations=titles,
        xaxis={**x, "anchor": data[-1]["yaxis"]},
        **axes,
    )
