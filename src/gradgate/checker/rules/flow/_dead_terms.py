"""Finds summands inside a mean that were detached from the loss's own graph, so that they train nothing."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._dead_summands import dead_summands
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.flow._cut_terms import WHY
from gradgate.checker.rules.flow._graph_fixes import without_cut
from gradgate.events import Backward, Combined, Frame

_CALLS = 2


def dead_terms(run: Run, rule: Rule, files: tuple[str, ...]) -> Iterator[Finding]:
    """Report a value that is detached from the loss's graph and reaches the loss only through sums and means."""
    events = [event for event in run.of(Combined) if event.site]
    cuts = {event.site[0][:2] for event in events if event.how == "cut"}
    sums = Counter(event.site for event in events if event.how == "constant") if cuts else Counter()
    backwards = {event.site: event.backward for event in events if event.how == "constant"}
    reported: set[Frame] = set()
    sites = [site for site, count in sums.items() if count >= _CALLS]
    for part, site, cut in dead_summands(run, sites, files, cuts):
        if cut in reported:
            continue
        reported.add(cut)
        yield rule.finding(
            cut,
            f"`{ast.unparse(part)}` is added to the loss at line {site[0].line} as a constant: its graph is cut "
            "here, although the loss has the graph from which it was computed.",
            why=WHY,
            advice="Compute the value with its graph, without no_grad, detach or .data.",
            fix=partial(without_cut, ops=("detach", "data")),
            count=sum(event.site == backwards[site] for event in run.of(Backward)),
            evidence={"added_at": site[0].line},
        )
