"""Finds probes whose loss also trains the representation that the probe reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import text_of
from gradgate.checker.analysis._statement import Statement, owner
from gradgate.checker.fixes import Fix
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._graph_fixes import detached
from gradgate.events import Ids, Site

_PROBE = re.compile(
    r"(^|[._])((linear_?)?prob(e|er|ing)s?|(online|linear)_?eval(uator|uation)?|online_?(classifier|clf)|monitor)"
    r"([._\[]|$)",
    re.IGNORECASE,
)


def probes(run: Run, rule: Rule) -> Iterator[tuple[Site, Finding]]:
    """Yield each line that back-propagates a probe's loss into the probe's input, with its finding."""
    optimizers = {each for each in run.stepping if _PROBE.search(run.optimizer(each))}
    all_probes = frozenset(
        number for number in run.owned if _PROBE.search(run.name(number)) or run.owners[number] <= optimizers
    )
    reported: set[Site] = set()
    for window in run.windows:
        losses = [(run.backward(number), *loss) for number in window.micro for loss in _losses(run, number)]
        for event, site, reach in losses:
            others = [theirs for _, at, theirs in losses if (at, theirs) != (site, reach)]
            own = reach & all_probes
            if not own and _is_probes(site):
                own = reach.difference(*others) if any(theirs & reach for theirs in others) else own
            rest = (reach - own) & run.owned
            if not own or not rest or site in reported:
                continue
            if all("online" in run.name(each) for each in own) and any("online" in run.name(n) for n in rest):
                continue  # the trained copy of a network, as opposed to its average
            others = [theirs for theirs in others if theirs & rest]
            if any(theirs & own for theirs in others) or all(theirs & all_probes for theirs in others):
                continue
            reported.add(site)
            first = next((where for number, where in event.uses if number in own), ())
            names = {part for number in own for part in run.name(number).split(".")}
            finding = rule.finding(
                next((frame for frame in first if "prob" in text_of(frame).lower()), first or site),
                f"The loss of line {innermost(site).line} belongs to {run.names(own)}, but its gradient also "
                f"trains {run.names(rest)}.",
                why="A probe should measure a representation, but here the probe's loss also trains the "
                "representation.",
                advice="Detach the probe's input: probe(features.detach()).",
                fix=partial(_without_graph, names=names),
                severity="warning",
                count=len(run.calls_at(event.site)),
                evidence={"parameters": len(rest)},
                about=rest,
            )
            yield event.site, finding


def _is_probes(site: Site) -> bool:
    """Return whether a line assigns or back-propagates a loss that is called a probe's: ``probe_loss``."""
    at = Statement.at(innermost(site))
    target = at.node.targets[0] if at is not None and isinstance(at.node, ast.Assign) else None
    named = ast.unparse(target) if target is not None else owner(at.node) if at is not None else ""
    return bool(_PROBE.search(named))


def _losses(run: Run, number: int) -> list[tuple[Site, Ids]]:
    """Return the lines and parameters of a backward call's terms, or none if the parameters are not known."""
    event = run.backward(number)
    if len(event.terms) == 1:
        return [(event.site, event.reached)]
    return [(term.site, term.reach) for term in run.terms(number) if term.reach]


def _without_graph(at: Statement, *, names: set[str]) -> Fix:
    calls = ((call, last_name(call.func)) for call in of_one_name(at))
    return detached([call for call, name in calls if name in names or _PROBE.search(name)])


def of_one_name(at: Statement) -> list[ast.Call]:
    """Return the calls in a statement whose only argument is a name."""
    calls = [call for call in at.calls() if len(call.args) == 1 and not call.keywords]
    return [call for call in calls if isinstance(call.args[0], ast.Name)]
