"""Curves over the steps: losses, learning rates, norms of gradients, and relative sizes of updates."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from gradgate.checker.analysis import Share
from gradgate.checker.analysis._oracle import shares
from gradgate.checker.reports.page._run_view import Figure, RunView, escaped, figure, label_of
from gradgate.events import Backward, Term

_COLORS = (
    *("#2f7fc1", "#d9622b", "#2e9e6f", "#c0518f", "#d6a324", "#7a6cc4", "#3fa9b5"),
    *("#9c6b4a", "#6f7d8c", "#b0413e", "#5f9e2f", "#a26bb0", "#4a6fa5", "#c98a5e"),
)

Lines = dict[str, dict[int, float]]
"""Name of a curve -> step -> value."""


class Norms(NamedTuple):
    """A module's norms at one step: gradient, update, and weights before the step."""

    gradient: float
    change: float
    weights: float


def losses(view: RunView) -> Lines:
    """Return the mean loss of each window, for each line that calls backward. A divided loss is named as such."""
    calls: dict[str, dict[int, list[Backward]]] = defaultdict(lambda: defaultdict(list))
    for number, event in view.run.numbered(Backward):
        step = bisect_left(view.step_numbers, number) + 1
        if _has_loss(event) and step <= len(view.steps):
            calls[label_of(event.site)][step].append(event)
    found: Lines = {}
    for name, steps in calls.items():
        shown = {step: [_loss(event, len(events)) for event in events] for step, events in steps.items()}
        divisors = sorted({divisor for pairs in shown.values() for _, divisor in pairs} - {1})
        by = " to ".join(f"{divisor:g}" for divisor in dict.fromkeys((*divisors[:1], *divisors[-1:])))
        found[name + f", divided by {by}" * bool(by)] = {
            step: sum(value for value, _ in pairs) / len(pairs) for step, pairs in shown.items()
        }
    return found


def _has_loss(event: Backward) -> bool:
    """Return whether the loss is known. With a gradient scaler it isn't, because the scale is not."""
    return event.value is not None and event.scaler is None


def _loss(event: Backward, size: int) -> tuple[float, float]:
    """Return a call's loss without the factors that its own line applies, and the number that divides the rest.

    ``(loss / 4).backward()`` back-propagates a quarter of the loss that the script has a name for, and may print.
    """
    terms = [term for term in event.terms if term.kind != "constant"]
    value, every = event.value or 0.0, [_share(term) for term in terms]
    if not every:
        return value, 1.0
    common = [factor for factor in every[0].numbers if all(factor in share.numbers for share in every)]
    here = tuple(factor for factor in common if factor[2][:1] == event.site[:1] and factor[1])
    before = tuple(factor for factor in common if factor not in here)
    divisors = replace(every[0], numbers=before).divisors(size)
    return value / replace(terms[0], factors=here, times=1.0).weight, math.prod(
        number for number, _ in divisors
    )


def _share(term: Term) -> Share:
    return next(iter(shares([term])), Share(term, None, 0.0, None, term.factors))


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


def whole_norms(view: RunView) -> Lines:
    """Return the norm of the whole gradient at each step of an optimizer, if measured."""
    found: Lines = defaultdict(dict)
    for step, (_, event) in enumerate(view.steps, start=1):
        norm = math.sqrt(sum(gradient * gradient for _, gradient, _, _ in event.norms))
        if math.isfinite(norm) and norm > 0:
            found[view.optimizer(event.optimizer)][step] = norm
    return dict(found)


def norms(view: RunView) -> dict[str, dict[int, Norms]]:
    """Return the norms by module and step. Steps are numbered from 1, across all optimizers."""
    squares: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))
    for step, (_, event) in enumerate(view.steps, start=1):
        for number, *values in event.norms:
            sums = squares[view.groups[number]][step]
            sums[:] = [total + value * value for total, value in zip(sums, values, strict=True)]
    return {
        module: {step: Norms(*map(math.sqrt, sums)) for step, sums in squares[module].items()}
        for module in view.order
        if module in squares
    }


def draw(view: RunView) -> list[Figure]:
    """Return the figures of losses, rates and the whole gradient, for the run as a whole."""
    backwards = view.run.of(Backward)
    measured = _sampled(sum(map(_has_loss, backwards)), len(backwards), "backward calls")
    return [
        *_curves(view, "Loss", losses(view), measured),
        *_curves(view, "Learning rate", rates(view)),
        *_curves(view, "Gradient norm", whole_norms(view), _with_norms(view)),
    ]


def draw_gradients(view: RunView) -> list[Figure]:
    """Return the figure of each module's gradient norm, if any was measured."""
    found = {name: {step: at.gradient for step, at in points.items()} for name, points in norms(view).items()}
    return _curves(view, "Gradient norm", found, _with_norms(view), 320)


def draw_ratios(view: RunView) -> list[Figure]:
    """Return the figure of update norms relative to weight norms, if any was measured."""
    found = {
        name: {step: at.change / at.weights for step, at in points.items() if at.weights}
        for name, points in norms(view).items()
    }
    return _curves(view, "Change / weights", found, _with_norms(view), 320)


def _with_norms(view: RunView) -> str:
    return _sampled(sum(bool(event.norms) for _, event in view.steps), len(view.steps), "steps")


def _sampled(measured: int, total: int, noun: str) -> str:
    """Return what a title says about curves that have values for only some of the steps or calls; otherwise ""."""
    return f", sampled at {measured:,} of {total:,} {noun}" if measured < total else ""


def _curves(view: RunView, title: str, lines: Lines, measured: str = "", height: int = 180) -> list[Figure]:
    """Return a figure of curves, or no figure if there is no curve of two points.

    Positive values that differ much get a logarithmic axis. The page shows the names of the curves.
    """
    lines = {
        name: {step: value for step, value in sorted(points.items()) if math.isfinite(value)}
        for name, points in lines.items()
        if points
    }
    if max(map(len, lines.values()), default=0) < 2:
        return []
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers" if measured or len(points) < 60 else "lines",
            "name": escaped(name),
            "x": list(points),
            "y": list(points.values()),
            "line": {"color": _COLORS[number % len(_COLORS)], "width": 1.8},
            "marker": {"size": 4},
            "hovertemplate": "step %{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
        }
        for number, (name, points) in enumerate(lines.items())
    ]
    scale = _scale(value for points in lines.values() for value in points.values())
    return [
        figure(
            traces,
            title=title + measured,
            key=[(name, _COLORS[number % len(_COLORS)]) for number, name in enumerate(lines)],
            height=height,
            hovermode="closest",
            showlegend=False,
            xaxis={**view.step_axis(), "range": [0.5, len(view.steps) + 0.5]},
            yaxis={"automargin": True, "fixedrange": True, **scale},
        )
    ]


def _scale(values: Iterable[float]) -> dict[str, Any]:
    """Return the scale of an axis. A logarithmic one spans whole powers of ten, so that it carries some."""
    heights = [*values]
    if min(heights) <= 0 or max(heights) <= 10 * min(heights):
        return {"rangemode": "tozero", "nticks": 4, "exponentformat": "power"}
    low, high = math.floor(math.log10(min(heights))), math.ceil(math.log10(max(heights)))
    return {"type": "log", "range": [low, high], "dtick": -(-(high - low) // 4), "exponentformat": "power"}
