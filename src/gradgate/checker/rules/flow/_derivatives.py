"""Finds derivatives without a graph that a loss or another derivative uses."""

from __future__ import annotations

import ast
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
from gradgate.checker.analysis._source import inside, statement_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._cut_terms import WITH_GRAPH
from gradgate.checker.rules.flow._graph_fixes import with_graph
from gradgate.events import Differentiated, Frame

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
