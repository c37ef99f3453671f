"""Graphs are kept alive from step to step.

## What it does
Counts the graphs of back-propagated losses that are still alive after later steps, and names the variable that
keeps them and the line that stores them. Also counts graphs that an evaluation (after ``eval()``) collects but no
backward pass uses. Reports graphs that become longer with each step, or with each backward call before a step,
because a value is carried over with its graph. Notes where ``retain_graph=True`` keeps a graph that is not used
again.

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
their containers and objects. An evaluation without a call of ``eval()`` is not checked. Graphs that grow with each
call of ``autograd.grad`` are reported if no other line computes gradients. Graphs of ``torch.func`` are not seen.
A loop that detaches the carried value itself, every few steps, is not reported.
If the weights of a teacher are an average with a graph that grows, only GG406 is reported: its advice removes both.

## Sources
https://docs.pytorch.org/docs/stable/notes/faq.html, "My model reports cuda runtime error(2): out of memory": don't
accumulate history across your training loop.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._queries import combinations
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import (
    called,
    imported,
    last_name,
    own_calls,
)
from gradgate.checker.analysis._source import function_at, inside, tree_of
from gradgate.checker.analysis._statement import Statement, operand
from gradgate.checker.fixes import Fix, PutUnder, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.lifetime._carried_values import PASSES, carried_on, detached_again, is_truncated
from gradgate.checker.rules.lifetime._growing_window import growing_before_a_step
from gradgate.checker.rules.lifetime._needless_retains import needless_retains
from gradgate.events import Backward, Differentiated, Frame, GraphsKept, Stepped

_PUTS = ("append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put")
_SAFE = ("item", "detach", "tolist", "numpy", "cpu_item", "float")
_BY_HAND = (
    "Detach values that are carried over from step to step. For parameters that are updated by hand: "
    "(p - lr * gradient).detach().requires_grad_()."
)
_RETAINED = " Then retain_graph=True is needed only if another backward call uses the same graph."
_GROWS = 4  # consecutive calls, each with a longer graph


def _judge(run: Run) -> Iterator[Finding]:
    yield from _reaching_back(run)
    yield from growing_before_a_step(run, RULE)
    yield from _kept(run)
    yield from needless_retains(run, RULE)


def _kept(run: Run) -> Iterator[Finding]:
    """Report variables that keep the graphs of backward calls, or of forward passes of an evaluation."""
    trained = {frame[:2] for event in run.of(Backward, Differentiated) for frame in event.site}
    events = sorted(run.of(GraphsKept), key=lambda event: bool(event.holder))
    evaluations = [event for event in events if not event.backward]
    for event in [*{event.backward: event for event in events if event.backward}.values(), *evaluations]:
        where = _line_that_keeps(event)
        holder = event.holder or "A variable or an object"
        text = f"{holder} keeps the graphs of at least {event.count} earlier backward calls alive."
        why, advice = (
            "Memory grows with each step until it runs out.",
            "Keep only the value: loss.item(), or output.detach().",
        )
        if not event.backward:
            text = (
                f"{holder} keeps the graphs of at least {event.count} forward passes of an evaluation alive, "
                "and no backward pass uses them."
            )
            why = "The activations of each batch stay in memory, so memory grows with the evaluation data."
            advice = "Evaluate without graphs: put the loop under torch.no_grad()."
        yield RULE.finding(
            where or event.backward or event.site,
            text,
            why=why,
            advice=advice,
            fix=_detached if event.backward else partial(_without_graphs, trained=trained),
            severity="info" if where is None and event.backward else None,
            count=event.count,
            evidence={"graphs": event.count, "holder": event.holder},
        )


def _without_graphs(at: Statement, trained: set[tuple[str, int]]) -> Fix:
    """Put the loop under ``no_grad``, if nothing in it computes a gradient."""
    if not at.loops or "torch" not in imported(at.file):
        return ()
    loop = at.loops[0]
    lines = range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)
    derives = any(file == at.file and line in lines for file, line in trained)
    return () if derives else (PutUnder(loop.lineno, "with torch.no_grad():"),)


def _line_that_keeps(event: GraphsKept) -> Frame | None:
    """Find the line that stores a value in the holder, by the holder's name. Prefer lines that don't detach it."""
    names = [name for name in reversed(re.findall(r"[A-Za-z_]\w*", event.holder)) if name != "self"]
    files = dict.fromkeys(frame.file for site in (event.added, event.site, event.backward) for frame in site)
    # A variable of an evaluation may have the same name as a variable of another function.
    local = function_at(event.added[0]) if event.added and event.holder.isidentifier() else None
    for name in names:
        for file in files:
            tree = tree_of(file) if event.backward or local is None else local
            nodes = inside(ast.AST, tree)
            lines = [(_is_safe(node), node.lineno) for node in nodes if _puts(node, name)]  # type: ignore[attr-defined]
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
    lines = grouped(
        (event.site, event)
        for event in run.of(Backward, Differentiated)
        if isinstance(event, Differentiated) or event.seen
    )
    averages = {innermost(each.site) for each in combinations(run, ["averaged weights"])}
    for site, events in lines.items():
        differentiated = isinstance(events[0], Differentiated)
        # Without a step or an update in place, old and new nodes can't be told apart.
        stepped = bool(run.of(Stepped)) or any(event.old_nodes for event in events)
        # An inner loop is differentiated later as a whole, by another line.
        if differentiated and (len(lines) > 1 or any(event.create for event in events)):
            continue
        longest = row = 0
        for before, after in pairwise(events):
            retained = isinstance(after, Backward) and after.retain
            older = after.old_nodes > before.old_nodes or (
                retained and (not stepped or after.old_nodes == before.old_nodes > 0)
            )
            row = row + 1 if older and after.nodes > before.nodes else 0
            longest = max(longest, row)
        by_hand = differentiated or not stepped
        if longest < max(_GROWS, len(events) - 1 - differentiated if by_hand else 0):
            continue
        most = max(events, key=lambda event: (event.old_nodes, event.nodes))
        if innermost(most.old_site) in averages:
            continue  # attached-target reports it
        carried = None if by_hand else carried_on(most.old_site, site)
        if carried is not None and is_truncated(*carried):
            continue
        calls = f"after {len(events)} backward calls"
        before_last = f"{calls}, {most.old_nodes} of its {most.nodes} nodes were made before the last step"
        grown = f"it had {events[0].nodes} nodes at first and {most.nodes} {calls}"
        yield RULE.finding(
            carried[0] if carried else most.old_site or site,
            f"The graph grows with each step: {grown if by_hand else before_last}.",
            why="Each backward pass goes through all earlier steps, so memory and time grow with every step.",
            advice=(
                _BY_HAND
                if by_hand
                else f"Detach {' and '.join(map('`{}`'.format, carried[1]))} where the next step uses it."
                if carried
                else "Detach values that are carried over from step to step: self.state = new.detach()."
            )
            + (_RETAINED if any(isinstance(event, Backward) and event.retain for event in events) else ""),
            fix=() if by_hand else partial(detached_again, names=carried[1]) if carried else _detached,
            count=len(events),
            evidence={"nodes": most.nodes, "old_nodes": most.old_nodes},
        )


def _detached(at: Statement) -> Fix:
    """Detach the kept value, if it is certainly a tensor and no later loss uses it."""
    node, kept = at.node, at.value
    if isinstance(node, ast.Expr):
        match kept:
            case ast.Call(ast.Attribute(attr="append"), [kept]):
                known = _is_loss(at, kept)
            case ast.Call(ast.Attribute(attr=name), [kept, *_]) if name.endswith("_"):
                known = any(_is_loss(at, each) for each in ast.walk(kept))
            case _:
                return ()
    elif isinstance(node, ast.AugAssign):
        known = isinstance(kept, ast.BinOp) or _is_loss(at, kept)
    else:
        attribute = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
        # In a forward pass, the kept value is also part of this step's loss.
        passes = getattr(at.function, "name", "") in PASSES
        known = attribute and isinstance(kept, (ast.BinOp, ast.IfExp)) and not passes
    if kept is None or not known:
        return ()
    if any(isinstance(inner, (ast.Tuple, ast.List, ast.Dict)) for inner in ast.walk(kept)):
        return ()
    text = ast.unparse(kept)
    later = [call for call in own_calls(at.function) if call.lineno > at.line and called(call) == "backward"]
    losses = [ast.unparse(getattr(call.func, "value", call)) for call in later]
    return (Replace(at.line, text, f"{operand(kept)}.detach()"),) if not losses or text in losses else ()


def _is_loss(at: Statement, kept: ast.AST | None) -> bool:
    """Return whether a value is a loss or the input of a loss, and therefore certainly a tensor."""
    if not isinstance(kept, (ast.Name, ast.Attribute)):
        return False
    name = ast.unparse(kept)
    of_losses = (
        call
        for call in own_calls(at.function)
        if re.search("loss|criterion|entropy", ast.unparse(call.func), re.IGNORECASE)
    )
    return bool(re.search("loss|err$|cost", name, re.IGNORECASE)) or any(
        name in map(ast.unparse, call.args) for call in of_losses
    )


RULE = Rule("GG601", "graph-retention", "warning", __doc__ or "", _judge)
