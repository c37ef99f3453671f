"""Graphs are kept alive from step to step.

## What it does
Counts the graphs of back-propagated losses that still live after later steps, and names what holds them and the
line that puts them there. Reports graphs that reach farther back with each call, through a value that is carried
on with its history. Says as a note where ``retain_graph=True`` keeps a graph that nothing uses again.

## Why is this bad?
Memory grows with each step until it runs out, and where a graph reaches back, each backward goes through all the
steps before: the run gets slower and slower.

## Example
    total = 0.0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss                    # links the graphs of all batches

## Use instead
        total += loss.item()             # or loss.detach(), where waiting for the device costs too much

## Known limits
What holds the graphs is found in variables of the functions that run at a step, and up to four levels into their
containers and objects.

## Sources
https://docs.pytorch.org/docs/stable/notes/faq.html, "My model reports cuda runtime error(2): out of memory": don't
accumulate history across your training loop.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import tree_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Differentiated, Frame, GraphsKept, Site, Stepped

_WHY = "Memory grows with each step until it runs out."
_PUTS = ("append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put")
_SAFE = ("item", "detach", "tolist", "numpy", "cpu_item")
_GROWS = 4  # calls in a row whose graphs reach farther back each time


def _judge(run: Run) -> Iterator[Finding]:
    yield from _reaching_back(run)
    yield from _kept(run)
    yield from _retained(run)


def _kept(run: Run) -> Iterator[Finding]:
    last = {event.backward: event for event in sorted(run.of(GraphsKept), key=lambda one: bool(one.holder))}
    for event in last.values():
        where = _line_that_keeps(event)
        holder = event.holder or "A variable or an object"
        yield RULE.finding(
            where or event.backward,
            f"{holder} keeps the graphs of {event.count} earlier backward calls alive.",
            why=_WHY,
            advice="Keep the number or the values alone: loss.item(), or output.detach().",
            severity=None if where is not None else "info",
            count=event.count,
            evidence={"graphs": event.count, "holder": event.holder},
        )


def _line_that_keeps(event: GraphsKept) -> Frame | None:
    """Find the line that puts something into the holder, by the holder's name."""
    names = [name for name in reversed(re.findall(r"[A-Za-z_]\w*", event.holder)) if name != "self"]
    files = dict.fromkeys(frame.file for site in (event.added, event.site, event.backward) for frame in site)
    for name in names:
        for file in files:
            lines = sorted(_puts(tree_of(file), name))
            if lines:
                return Frame(file, lines[0][1], "")
    return None


def _puts(tree: ast.Module | None, name: str) -> Iterator[tuple[bool, int]]:
    """Yield lines that put something into what is called ``name``, and whether they take it out of its graph."""
    for node in ast.walk(tree) if tree is not None else ():
        into: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            into = [node.func.value] if node.func.attr in _PUTS else []
        elif isinstance(node, ast.AugAssign):
            into = [node.target]
        elif isinstance(node, ast.Assign):
            into = [node.targets[0], node.value]
        if into and all(name in _names(one) for one in into):
            yield _is_safe(node), getattr(node, "lineno", 0)


def _names(node: ast.AST) -> set[str]:
    found = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    found |= {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
    return found | {str(inner.value) for inner in ast.walk(node) if isinstance(inner, ast.Constant)}


def _is_safe(node: ast.AST) -> bool:
    calls = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return any(
        (isinstance(one, ast.Attribute) and one.attr in _SAFE)
        or (isinstance(one, ast.Name) and one.id == "float")
        for one in calls
    )


def _reaching_back(run: Run) -> Iterator[Finding]:
    lines: dict[Site, list[Backward]] = defaultdict(list)
    for event in run.of(Backward):
        if event.seen:
            lines[event.site].append(event)
    for site, events in lines.items():
        longest = row = 0
        for before, after in pairwise(events):
            row = row + 1 if after.old_nodes > before.old_nodes and after.nodes > before.nodes else 0
            longest = max(longest, row)
        if longest < _GROWS:
            continue
        most = max(events, key=lambda event: event.old_nodes)
        yield RULE.finding(
            most.old_site or site,
            f"The graph reaches farther back with each step: {most.old_nodes} of its {most.nodes} nodes were made "
            f"before the last one, after {len(events)} backward calls.",
            why="Each backward goes through all the steps before: memory and time grow with every step.",
            advice="Detach what is carried on from step to step: self.state = new.detach().",
            count=longest,
            evidence={"nodes": most.nodes, "old_nodes": most.old_nodes},
        )


def _retained(run: Run) -> Iterator[Finding]:
    """Note lines that retain every graph although a step follows at once and no later graph leads back into it."""
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
            yield RULE.finding(
                site,
                f"retain_graph=True keeps a graph that nothing goes through again, {count} times.",
                why="The activations of a batch stay in memory until the next forward has made its own.",
                advice="Leave retain_graph out.",
                severity="info",
                count=count,
                evidence={"retained": count},
            )


RULE = Rule("GG601", "graph-retention", "warning", __doc__ or "", _judge)
