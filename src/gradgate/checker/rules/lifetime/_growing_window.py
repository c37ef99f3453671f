"""Finds graphs that grow with each backward call before the same step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Cleared, Clipped, Site, Stepped

_CALLS = 5  # calls of a line in all windows
_FEW_CALLS = 2  # two losses before a step may share a part that was computed once


def growing_before_a_step(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report lines that call backward several times before a step, each time through all earlier graphs again."""
    windows: dict[Site, list[list[Backward]]] = defaultdict(list)
    waiting: dict[Site, list[Backward]] = defaultdict(list)
    for event in run.of(Backward, Cleared, Clipped, Stepped):
        if isinstance(event, Backward):
            waiting[event.site].append(event)
            continue
        for site, calls in waiting.items():
            if len(calls) > _FEW_CALLS and all(call.seen and not call.create for call in calls):
                windows[site].append(calls)
        waiting.clear()
    for site, several in windows.items():
        if sum(map(len, several)) < _CALLS or not all(map(_grows, several)):
            continue
        most = max(several, key=len)
        yield rule.finding(
            site,
            f"Each of {len(most)} backward calls before a step goes through the graphs of all earlier calls again: "
            f"the graph grows from {most[0].nodes} to {most[-1].nodes} nodes.",
            why="A value is carried over with its graph, so time grows with the square of the number of calls.",
            advice="Detach the value that is carried over, and remove retain_graph. If the gradient should flow "
            "through all calls, add up the losses and call backward() once: the gradient is the same.",
            count=sum(map(len, several)),
            evidence={"calls": len(most), "nodes": most[-1].nodes},
            about=most[-1].reached,
        )


def _grows(calls: list[Backward]) -> bool:
    """Return whether each call reaches the same parameters through more nodes of earlier calls."""
    pairs = list(pairwise(calls[1:]))
    return (
        not any(call.old_nodes for call in calls)
        and all(a.reached == b.reached and 0 < a.shared < b.shared and a.nodes < b.nodes for a, b in pairs)
        and calls[0].nodes < calls[1].nodes
    )
