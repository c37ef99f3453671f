"""Graphs are kept alive from step to step.

## What it does
Counts the graphs of back-propagated losses that are still alive after later steps, and names the variable that
keeps them and the line that stores them. Reports graphs that become longer with each step, because a value is
carried over with its graph.

## Why is this bad?
Memory grows with each step until it runs out. If the graph of a step includes earlier steps, each backward pass
goes through all of them, and the run gets slower and slower.

## Example
    total = 0.0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss                    # keeps the graphs of all batches

## Use instead
        total += loss.item()             # or loss.detach(), which does not synchronize with the device

## Known limits
The rule looks for graphs in the local variables of the functions that run at a step, and up to four levels deep in
their containers and objects. Graphs that an evaluation collects without ``no_grad`` are not found. Graphs that grow
with each call of ``autograd.grad`` are reported if no other line computes gradients. Graphs of ``torch.func`` are
not seen. A graph that becomes short again, because the loop detaches the carried value every few steps, is not
reported, even if it grows for long. Nor is a graph that grows with each backward call before one step, or a
``retain_graph=True`` that is not needed.
If the weights of a teacher are an average with a graph that grows, only GG406 is reported: its advice removes both.

## Sources
https://docs.pytorch.org/docs/stable/notes/faq.html, "My model reports cuda runtime error(2): out of memory": don't
accumulate history across your training loop.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, last_name
from gradgate.checker.analysis._source import inside, tree_of
from gradgate.checker.analysis._statement import Statement, operand
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import lifetime as texts
from gradgate.events import Backward, Differentiated, Frame, GraphsKept, Stepped

_PUTS = ("append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put")
_SAFE = ("item", "detach", "tolist", "numpy", "float")
_GROWS = 4  # consecutive calls, each with a longer graph


def _judge(run: Run) -> Iterator[Finding]:
    yield from _reaching_back(run)
    yield from _kept(run)


def _kept(run: Run) -> Iterator[Finding]:
    """Report variables that keep the graphs of backward calls."""
    events = sorted(run.of(GraphsKept), key=lambda event: bool(event.holder))
    for event in {event.backward: event for event in events}.values():
        where = _line_that_keeps(event)
        yield RULE.say(
            where or event.backward,
            texts.KEEPS,
            fix=_detached,
            severity="info" if where is None else None,
            count=event.count,
            about=union(call.reached for call in run.calls_at(event.backward)),
            graphs=event.count,
            holder=event.holder or "A variable or an object",
        )


def _line_that_keeps(event: GraphsKept) -> Frame | None:
    """Find the line that stores a value in the holder, by the holder's name. Prefer lines that don't detach it."""
    names = [name for name in reversed(re.findall(r"[A-Za-z_]\w*", event.holder)) if name != "self"]
    files = dict.fromkeys(frame.file for site in (event.added, event.site, event.backward) for frame in site)
    for name in names:
        for file in files:
            lines = [
                (_is_safe(node), node.lineno)  # type: ignore[attr-defined]
                for node in inside(ast.AST, tree_of(file))
                if _puts(node, name)
            ]
            if lines:
                return Frame(file, min(lines)[1], "")
    return None


def _puts(node: ast.AST, name: str) -> bool:
    """Return whether a node stores a value in the object called ``name``, such as ``total.add_(loss)``."""
    if isinstance(node, ast.AugAssign):
        return name in _names(node.target)
    if isinstance(node, ast.Assign):
        return name in _names(node.targets[0]) & _names(node.value)
    method = node.func if isinstance(node, ast.Call) and node.args else None
    if not isinstance(method, ast.Attribute) or name not in _names(method.value):
        return False
    return method.attr in _PUTS or (method.attr.endswith("_") and not method.attr.endswith("__"))


def _names(node: ast.AST) -> set[str]:
    """Return the names, attributes and constants of an expression."""
    return {last_name(each) or str(getattr(each, "value", "")) for each in inside(ast.expr, node)}


def _is_safe(node: ast.AST) -> bool:
    return any(called(call) in _SAFE for call in inside(ast.Call, node))


def _reaching_back(run: Run) -> Iterator[Finding]:
    """Report lines whose graphs become longer and longer, and never shorter again."""
    lines = grouped(
        (event.site, event)
        for event in run.of(Backward, Differentiated)
        if isinstance(event, Differentiated) or event.seen
    )
    for site, events in lines.items():
        differentiated = isinstance(events[0], Differentiated)
        # Without a step or an update in place, old and new nodes can't be told apart.
        stepped = bool(run.of(Stepped)) or any(event.old_nodes for event in events)
        by_hand = differentiated or not stepped
        # An inner loop is differentiated later as a whole, by another line.
        if differentiated and (len(lines) > 1 or any(event.create for event in events)):
            continue
        pairs = list(pairwise(events))
        longer = [b.nodes > a.nodes and _is_older(a, b, stepped=stepped) for a, b in pairs]
        # A loop that detaches the value every few steps makes the graph short again.
        shorter = any(b.old_nodes < a.old_nodes or (by_hand and b.nodes < a.nodes) for a, b in pairs)
        grows = sum(longer) >= max(_GROWS, len(pairs) - differentiated if by_hand else 0)
        most = max(events, key=lambda event: (event.old_nodes, event.nodes))
        if not grows or shorter:
            continue
        facts = {"first": events[0].nodes, "nodes": most.nodes, "calls": len(events), "old": most.old_nodes}
        yield RULE.say(most.old_site or site, texts.GROWS, fix=_detached, count=len(events), **facts)


def _is_older(before: Backward | Differentiated, after: Backward | Differentiated, *, stepped: bool) -> bool:
    """Return whether a graph reaches further back than the one before it."""
    retained = isinstance(after, Backward) and after.retain
    again = retained and (not stepped or after.old_nodes == before.old_nodes > 0)
    return after.old_nodes > before.old_nodes or again


# The fix


def _detached(at: Statement) -> Fix:
    """Detach the value that the statement stores, unless a later backward call uses it."""
    match at.node:
        case ast.Expr(ast.Call(ast.Attribute(attr="append"), [ast.Name() | ast.Attribute() as kept])):
            pass
        case ast.AugAssign(value=(ast.Name() | ast.Attribute() | ast.BinOp()) as kept):
            pass
        case ast.Assign([ast.Attribute()], (ast.BinOp() | ast.IfExp()) as kept):
            pass
        case _:
            return ()
    text = ast.unparse(kept)
    later = [ast.unparse(call.func) for node in at.later("backward") for call in inside(ast.Call, node)]
    target = ast.unparse(getattr(at.node, "target", ast.Constant(0)))
    return () if f"{target}.backward" in later else (Replace(at.line, text, f"{operand(kept)}.detach()"),)


RULE = Rule("GG601", "graph-retention", "warning", __doc__ or "", _judge)
