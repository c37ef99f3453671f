"""Finds derivatives without a graph that a loss or another derivative uses."""

from __future__ import annotations

import ast
import linecache
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_modes import no_grad_around
from gradgate.checker.analysis._queries import in_losses
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Scope,
    argument,
    called,
    definitions,
    names_read,
    own_nodes,
    scope_at,
)
from gradgate.checker.analysis._slices import slice_at
from gradgate.checker.analysis._source import inside, statement_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._cut_terms import WITH_GRAPH
from gradgate.checker.rules.flow._graph_fixes import with_graph
from gradgate.events import Backward, Differentiated, Frame, Ids, Site

_FIRST_ORDER = re.compile(r"first[-_ ]?order|fomaml|reptile", re.IGNORECASE)  # says that this is meant
_PLACE = 5  # autograd.grad(outputs, inputs, grad_outputs, retain_graph, create_graph)
_ERRORS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def derivatives_without_graph(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report derivatives without a graph that a loss adds to values with a graph, as in the residual of a PDE."""
    drawn = [event for event in run.of(Differentiated) if event.site and event.reached & run.owned]
    kept = {event.site[0] for event in drawn if event.create}
    without = [event.site for event in drawn if not event.create and not event.asked]
    for site in dict.fromkeys(without):
        returned = isinstance(statement_at(site[0]), ast.Return)  # from a function that only differentiates
        sums = (each for frame in site[returned : returned + 1] for each in _sums(frame, kept))
        total = next((each for each in sums if id(each) in in_losses(run)), None)
        if total is not None and site[0] not in kept:
            yield rule.finding(
                site[0],
                f"Line {total.lineno} combines this derivative with {'derivatives' if kept else 'values'} that "
                "have a graph, but this call of autograd.grad lacks create_graph=True: the derivative counts as a "
                "constant.",
                why="The loss includes the derivative, but training does not minimize it.",
                advice=WITH_GRAPH,
                fix=with_graph,
                count=without.count(site),
                evidence={"added_at": total.lineno},
            )


def inner_steps_without_graph(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report inner gradients that name no ``create_graph``, if they update weights that a meta loss uses."""
    asked: dict[Site, Ids] = defaultdict(frozenset)
    for event in run.of(Differentiated):
        if event.site and not event.create:
            asked[event.site] |= event.asked & run.owned
    losses = {event.site: event.reached for event in run.of(Backward) if event.site}
    if any(_FIRST_ORDER.search(line) for file in run.files for line in linecache.getlines(file)):
        return
    for site, ids in asked.items():
        returned = isinstance(statement_at(site[0]), ast.Return)  # from a function that only differentiates
        frame = next(iter(site[returned : returned + 1]), site[0])
        steps = {id(node): node for node in _inner_steps(frame)} if ids and _names_no_graph(site[0]) else {}
        meta = next((line for line, reached in losses.items() if steps and ids & reached), None)
        nodes = slice_at(meta, run.files).nodes if meta else []
        entering = next((steps[id(node)] for _, node in nodes if id(node) in steps), None)
        if meta is not None and entering is not None:
            yield rule.finding(
                site[0],
                f"The inner step at line {entering.lineno} uses gradients without a graph, because this call of "
                "autograd.grad has no create_graph=True. The loss of line "
                f"{meta[0].line} trains {run.names(ids)} with first-order gradients only.",
                why="The derivative of the inner gradients is missing: they count as constants.",
                advice="Pass create_graph=True, or create_graph=False if first order is meant.",
                severity="warning",
                count=len(run.calls_at(meta)),
                evidence={"parameters": len(ids)},
                about=ids,
            )


def _names_no_graph(frame: Frame) -> bool:
    """Return whether a line calls ``autograd.grad`` without a word about ``create_graph``."""
    calls = [call for call in inside(ast.Call, statement_at(frame)) if called(call) == "grad"]
    return len(calls) == 1 and (
        len(calls[0].args) < _PLACE
        and {"create_graph", None}.isdisjoint(each.arg for each in calls[0].keywords)
    )


def _inner_steps(frame: Frame) -> Iterator[ast.expr]:
    """Yield ``weight - rate * gradient`` of the gradients that the statement at a line computes."""
    scope = scope_at(frame)
    if scope is None:
        return
    names, nodes = _named_at(frame, scope), list(own_nodes(scope.node))
    loops = [node for node in nodes if isinstance(node, (ast.For, ast.comprehension))]
    for loop in loops:  # for weight, gradient in zip(weights, gradients)
        taken = (
            loop.iter.args if isinstance(loop.iter, ast.Call) and called(loop.iter) == "zip" else [loop.iter]
        )
        parts = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        pairs = zip(parts, taken, strict=len(parts) == len(taken)) if len(parts) == len(taken) else ()
        names |= {part.id for part, each in pairs if isinstance(part, ast.Name) and names_read(each) & names}
    for node in nodes:
        right: ast.expr | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            right = node.right
        elif isinstance(node, ast.Call) and called(node) == "sub" and node.args:
            right = node.args[-1]
        scaled = right is not None and names_read(right) & names and not _is_called(right, names)
        if scaled and isinstance(node, ast.expr) and not _is_detached(node, scope):
            yield node


def _is_called(value: ast.expr, names: set[str]) -> bool:
    """Return whether a call in an expression reads one of these names: norms and ``detach`` are no inner steps."""
    return any(names_read(call) & names for call in inside(ast.Call, value))


def _sums(frame: Frame, kept: set[Frame]) -> Iterator[ast.expr]:
    """Yield the sums and loss calls that combine the derivative of a line with values that have a graph.

    These values are derivatives with a graph, from the lines ``kept``, or else values of the derivative's function.
    """
    scope = scope_at(frame)
    calls = [call for call in inside(ast.Call, statement_at(frame)) if call.args + call.keywords]
    taken = [call for call in calls if called(call) == "grad"] or [
        call for call in calls if len(call.args) > 1
    ]
    outputs = argument(taken[0], 0, "outputs") if taken else None
    given = argument(taken[0], 1, "inputs") if taken else None
    if scope is None or outputs is None or given is None:
        return
    beside = set[str]().union(*(_named_at(each, scope) for each in kept))
    without = _named_at(frame, scope) - beside
    if not kept:
        beside = names_read(outputs)
        values = [each.value for name in beside for each in definitions(scope).get(name, ())]
        summed = [
            value for value in values if isinstance(value, ast.Call) and called(value) in ("sum", "mean")
        ]
        beside = (beside | names_read(*summed)) - names_read(given) - without
    for node in own_nodes(scope.node):
        sides: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            sides = [node.left, node.right]
        elif isinstance(node, ast.Call) and called(node) in _ERRORS and len(node.args) > 1:
            sides = node.args[:2]
        if len(sides) == 2 and isinstance(node, ast.expr) and not _is_detached(node, scope):
            for side, other in (sides, sides[::-1]):
                read = names_read(side)
                of_derivative = read & without or _holds(side, taken[0])
                if of_derivative and not read & beside - names_read(*taken) and names_read(other) & beside:
                    yield node


def _is_detached(node: ast.AST, scope: Scope) -> bool:
    """Return whether the function detaches an expression, or a variable that contains it."""
    holders = {
        name for name, several in definitions(scope).items() for each in several if _holds(each.value, node)
    }
    for call in own_nodes(scope.node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "detach":
            value = call.func.value
            if _holds(value, node) or names_read(value) & holders:
                return True
    line = Frame(scope.file, getattr(node, "lineno", 0), "")
    return no_grad_around(line) is not None


def _holds(value: ast.AST, node: ast.AST) -> bool:
    return node in ast.walk(value)


def _named_at(frame: Frame, scope: Scope) -> set[str]:
    """Return the variables of a function that only the statement at this line assigns."""
    statement = statement_at(frame)
    return {
        name
        for name, several in definitions(scope).items()
        if all(each.statement is statement for each in several)
    }
