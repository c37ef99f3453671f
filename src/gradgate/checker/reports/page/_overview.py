"""The figure of loss, learning rate and gradient norm over the steps. A pin marks when a finding appears."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gradgate.checker.analysis import Run
from gradgate.checker.reports.page._run_view import Figure, RunView, curve, figure, label_of
from gradgate.checker.rules import Finding, rules
from gradgate.events import Backward, Log

_ROW = 150  # pixels
_PIN = 17
_SEVERITIES = {"error": "#c2372b", "warning": "#a66a00", "info": "#2465b8"}

Lines = dict[str, dict[int, float]]
"""Name of a curve -> step -> value."""


def draw(view: RunView, findings: Sequence[Finding]) -> Figure | None:
    """Return the figure, or None if there was no step."""
    curves = {"loss": losses(view), "learning rate": rates(view), "gradient norm": norms(view)}
    shown = {title: lines for title, lines in curves.items() if any(lines.values())}
    if not shown:
        return None
    traces: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    height = 1 / len(shown)
    for row, (title, lines) in enumerate(shown.items(), start=1):
        top = 1 - (row - 1) * height
        values = [value for points in lines.values() for value in points.values()]
        wide = title == "gradient norm" and max(values) > 10 * min(values)
        axes[_axis("yaxis", row)] = {
            "domain": [top - height + 0.03, top - 0.09],
            "title": {"text": title},
            "automargin": True,
            "fixedrange": True,
            "exponentformat": "power",
            **({"type": "log", "dtick": 1} if wide else {"rangemode": "tozero", "nticks": 4}),
        }
        axes[_axis("legend", row)] = {"orientation": "h", "x": 0, "y": top - 0.09, "yanchor": "bottom"}
        traces += [
            curve(number, name, points, f"{title} %{{y:.4g}}", showlegend=True)
            | {"yaxis": _axis("y", row), "legend": _axis("legend", row)}
            for number, (name, points) in enumerate(lines.items())
            if points
        ]
    marks, labels = _pins(view, findings)
    above = max((label["yshift"] for label in labels), default=0)
    margin = {"l": 8, "r": 12, "t": 12 + (above + _PIN if labels else 0), "b": 8}
    return figure(
        traces,
        height=_ROW * len(shown) + 48 + margin["t"],
        margin=margin,
        shapes=marks,
        annotations=labels,
        hovermode="closest",
        xaxis={**view.step_axis, "range": [0.5, len(view.steps) + 0.5], "anchor": _axis("y", len(shown))},
        **axes,
    )


def losses(view: RunView) -> Lines:
    """Return the mean loss of each window, for each line that calls backward."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, event in view.run.numbered(Backward):
        if isinstance(event, Backward) and event.value is not None and math.isfinite(event.value):
            step = bisect_left(view.step_numbers, number) + 1
            if step <= len(view.steps):
                found[label_of(event.site)][step].append(event.value)
    return {
        name: {step: sum(values) / len(values) for step, values in steps.items()}
        for name, steps in found.items()
    }


def rates(view: RunView) -> Lines:
    """Return the learning rates of each optimizer. Groups with equal rates share a curve."""
    found: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for step, (_, event) in enumerate(view.steps, start=1):
        for group, rate in enumerate(event.lr):
            found[event.optimizer, group][step] = rate
    named: Lines = {}
    for (optimizer, group), points in found.items():
        if points not in named.values():
            named[view.optimizer(optimizer) + (f", group {group}" if group else "")] = points
    return named


def norms(view: RunView) -> Lines:
    """Return the norm of the whole gradient at each step of an optimizer, if measured."""
    found: Lines = defaultdict(dict)
    for step, (_, event) in enumerate(view.steps, start=1):
        norm = math.sqrt(sum(gradient * gradient for _, gradient, _, _ in event.norms))
        if math.isfinite(norm) and norm > 0:
            found[view.optimizer(event.optimizer)][step] = norm
    return dict(found)


def first_steps(log: Log, steps: Sequence[int], findings: Iterable[Finding]) -> list[int]:
    """Return, for each finding, the first step after which its rule reports the finding; 0 if there is none.

    ``steps`` are the positions of the steps among the log's events.
    """
    judges = {rule.code: rule.judge for rule in rules()}
    runs: dict[int, Run] = {}

    def reported(finding: Finding, step: int) -> bool:
        if step not in runs:
            events = log.events[: steps[step - 1] + 1] if step < len(steps) else log.events
            backwards = sum(isinstance(event, Backward) for event in events)
            runs[step] = Run(replace(log, events=events, steps=step, backwards=backwards))
        try:
            found = [(each.file, each.line) for each in judges[finding.code](runs[step])]
        except Exception:  # noqa: BLE001  (a rule need not support a truncated log)
            return False
        return (finding.file, finding.line) in found

    return [
        _first(lambda step, finding=finding: reported(finding, step), len(steps))  # type: ignore[misc]
        if finding.code in judges
        else 0
        for finding in findings
    ]


def _first(holds: Callable[[int], bool], last: int) -> int:
    """Return the smallest number up to ``last`` at which ``holds`` is true, or 0. ``holds`` must be monotonic."""
    high = 1
    while high < last and not holds(high):  # short logs are judged faster
        high = min(2 * high, last)
    found = bisect_left(range(1, high + 1), True, key=holds) + 1
    return found if found <= min(high, last) else 0


def _pins(view: RunView, findings: Sequence[Finding]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return plotly shapes and labels that mark the findings. Labels at the same step are stacked."""
    lines: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    stacked: dict[int, int] = defaultdict(int)
    steps = first_steps(view.log, view.step_numbers, findings)
    for number, (finding, step) in enumerate(zip(findings, steps, strict=True), start=1):
        if not step:
            continue
        color = _SEVERITIES[finding.severity]
        if not stacked[step]:
            ends = {"x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1}
            lines.append({"type": "line", **ends, "line": {"color": color, "width": 1.5, "dash": "dot"}})
        labels.append(
            {
                "text": f'<a href="#finding-{number}" target="_self" style="color:{color}">{finding.code}</a>',
                "x": step,
                "xanchor": "left" if 2 * step < len(view.steps) else "right",
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "yshift": _PIN * stacked[step],
                "showarrow": False,
                "font": {"color": color, "size": 12},
                "hovertext": f"{finding.code} {finding.category}, after step {step}",
            }
        )
        stacked[step] += 1
    return lines, labels


def _axis(kind: str, row: int) -> str:
    """Return plotly's name for a row's axis or legend. The first row has no number."""
    return f"{kind}{row}" if row > 1 else kind
