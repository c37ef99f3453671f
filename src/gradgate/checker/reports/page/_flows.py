"""Where the gradient of each loss goes: through modules to the optimizers that use it, or to nobody."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from gradgate.checker.analysis import Contribution
from gradgate.checker.reports._words import counted
from gradgate.checker.reports.page._seen import Fate, Seen, line_of, safe
from gradgate.checker.reports.page._theme import FATES, figure
from gradgate.events import OptimizerMade
from gradgate.notebook_tables import NOTHING, USED, WASTED, faint

CLEARED, LEFT = "cleared before a step", "left in .grad"
NOBODY, NONE = "in no optimizer", "no gradient came"


@dataclass
class Flow:
    """What one line's backward calls give to one module, and who uses it."""

    line: str
    module: str
    end: str
    fate: Fate
    parameters: set[int] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)


def flows(seen: Seen) -> list[Flow]:
    """Return what flowed, waste included, and optimizers' parameters to which nothing came."""
    found: dict[tuple[str, str, str, Fate], Flow] = {}
    for one in seen.run.contributions:
        if one.backward < 0:
            continue
        line = line_of(seen.run.backward(one.backward).site)
        ends = _ends(seen, one)
        for module, parameters in seen.by_group(one.atom).items():
            for end, fate in ends:
                flow = found.setdefault((line, module, end, fate), Flow(line, module, end, fate))
                flow.parameters |= parameters
                flow.calls.add(one.backward)
    # What stands there when the run ends is no waste, unless nothing else became of it before.
    known = {(flow.line, flow.module) for flow in found.values() if flow.end}
    kept = [flow for flow in found.values() if flow.end or (flow.line, flow.module) not in known]
    for flow in kept:
        if not flow.end:
            flow.end = LEFT
    return kept + _idle(seen)


def _ends(seen: Seen, one: Contribution) -> list[tuple[str, Fate]]:
    fate = seen.fate(one)
    steps = dict.fromkeys(seen.optimizer(seen.run.stepped(number).optimizer) for number in one.consumed)
    if steps:
        return [(name, fate) for name in steps]
    if not one.atom & seen.run.owned:
        return [(NOBODY, fate)]
    return [(CLEARED if one.cleared is not None else "", fate)]


def _idle(seen: Seen) -> list[Flow]:
    reached = seen.run.reached
    found: dict[tuple[str, str], Flow] = {}
    for event in seen.run.of(OptimizerMade):
        for group in event.groups:
            for module, parameters in seen.by_group(group.parameters - reached).items():
                end = seen.optimizer(event.optimizer)
                found.setdefault((module, end), Flow(NONE, module, end, "none")).parameters |= parameters
    return list(found.values())


def draw(seen: Seen) -> Any | None:
    """Return the Sankey diagram, or None where no backward call was seen."""
    found = flows(seen)
    if not found:
        return None
    names: dict[tuple[int, str], int] = {}
    colors: list[str] = []
    links: dict[str, list[Any]] = {"source": [], "target": [], "value": [], "color": [], "customdata": []}

    def node(column: int, name: str, color: str) -> int:
        if (column, name) not in names:
            names[column, name] = len(names)
            colors.append(color)
        return names[column, name]

    all_calls: dict[str, set[int]] = defaultdict(set)
    for flow in found:
        all_calls[flow.line] |= flow.calls
    place = {module: number for number, module in enumerate(seen.order)}
    for flow in sorted(found, key=lambda one: (one.line == NONE, place[one.module])):
        color = FATES[flow.fate]
        numbers = seen.numbers_in(flow.parameters)
        share = len(flow.calls) / len(all_calls[flow.line]) if flow.calls else 1.0
        width = math.sqrt(max(numbers, 1)) * share
        held = f"{counted(numbers, 'number')} in {counted(len(flow.parameters), 'parameter')}"
        held += f", {counted(len(flow.calls), 'backward call')}" if flow.calls else ""
        said = f"{safe(flow.line)}<br>{safe(flow.module)} → {safe(flow.end)}<br>{held}"
        ends = [
            (node(0, flow.line, NOTHING if flow.line == NONE else USED), node(1, flow.module, NOTHING)),
            (
                names[1, flow.module],
                node(2, flow.end, WASTED if flow.end in (CLEARED, LEFT, NOBODY) else USED),
            ),
        ]
        for source, target in ends:
            row = (source, target, width, faint(color), said)
            for key, value in zip(links, row, strict=True):
                links[key].append(value)
    return figure(
        [
            {
                "type": "sankey",
                "arrangement": "snap",
                "node": {
                    "label": [safe(name) for _, name in names],
                    "color": colors,
                    "pad": 16,
                    "thickness": 14,
                    "line": {"width": 0},
                    "hovertemplate": "%{label}<extra></extra>",
                },
                "link": {**links, "hovertemplate": "%{customdata}<extra></extra>"},
            }
        ],
        height=max(260, 34 * max(sum(column == one for column, _ in names) for one in range(3)) + 40),
    )
