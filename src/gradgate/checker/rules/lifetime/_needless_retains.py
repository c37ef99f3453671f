"""Finds ``retain_graph=True`` that keeps a graph for nothing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Differentiated, Site, Stepped


def needless_retains(run: Run, rule: Rule) -> Iterator[Finding]:
    """Note lines that retain each graph although a step follows at once and no later graph includes that graph."""
    needless: dict[Site, int] = defaultdict(int)
    needed: set[Site] = set()
    open_site: Site | None = None
    stepped = False
    for event in run.of(Backward, Differentiated, Stepped):
        if isinstance(event, Stepped):
            stepped = True
            continue
        if open_site is not None:
            if stepped and isinstance(event, Backward) and event.seen and not event.old_nodes:
                needless[open_site] += 1
            elif not stepped or not isinstance(event, Backward) or event.old_nodes:
                needed.add(open_site)
        retains = isinstance(event, Backward) and event.retain and not event.create
        open_site, stepped = (event.site if retains else None), False
    for site, count in needless.items():
        if count >= 2 and site not in needed and innermost(site).file:
            yield rule.finding(
                site,
                f"retain_graph=True keeps a graph that no later backward pass uses, {count} times.",
                why="The activations of a batch stay in memory while the next forward pass allocates new ones.",
                advice="Remove retain_graph.",
                fix=_without_retaining,
                severity="info",
                count=count,
                evidence={"retained": count},
            )


def _without_retaining(at: Statement) -> Fix:
    given = "(retain_graph=True)"
    texts = [text for text in map(ast.unparse, at.calls("backward")) if text.endswith(given)]
    return tuple(Replace(at.line, text, f"{text.removesuffix(given)}()") for text in texts)
