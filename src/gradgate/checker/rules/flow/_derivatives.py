"""Finds derivatives without a graph that a loss uses together with derivatives that have a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Scope,
    argument,
    called,
    definitions,
    no_grad_around,
    own_nodes,
    scope_at,
)
from gradgate.checker.analysis._slices import slice_at
from gradgate.checker.analysis._source import statement_at
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.flow._cut_terms import WITH_GRAPH, names_in
from gradgate.checker.rules.flow._graph_fixes import with_graph
from gradgate.events import Backward, Differentiated, Frame, Stepped

_ERRORS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def derivatives_without_graph(run: Run, rule: Rule, files: tuple[str, ...]) -> Iterator[Finding]:
    """Report a derivative without a graph that is added to a derivative with a graph, as in a PDE residual."""
    drawn = [event for event in run.of(Differentiated) if event.site and event.reached & run.owned]
    kept = {event.site[0] for event in drawn if event.create}
    lost = (
        dict.fromkeys(event.site[0] for event in drawn if not event.create and not event.asked)
        if kept
        else {}
    )
    sites = {event.site for event in run.of(Backward) if event.reached & run.owned}
    in_losses: list[ast.AST] | None = None
    for frame in lost:
        scope = scope_at(frame)
        if scope is None or frame in kept:
            continue
        with_a_graph = set[str]().union(*(_named_at(each, scope) for each in kept))
        without = _named_at(frame, scope) - with_a_graph
        sums = [each for each in _sums(scope) if _adds(each, without, with_a_graph)]
        if sums and in_losses is None:
            in_losses = [node for site in sites for _, node in slice_at(site, files).nodes]
        if in_losses is None or not any(each is node for each in sums for node in in_losses):
            continue
        yield rule.finding(
            frame,
            f"Line {sums[0].lineno} adds this derivative to others that have a graph, but autograd.grad "
            "is called without create_graph=True here.",
            why="The loss includes the derivative, but training does not minimize it.",
            advice=WITH_GRAPH,
            fix=with_graph,
            count=sum(event.site[0] == frame for event in drawn),
            evidence={"added_at": sums[0].lineno},
        )


def derivatives_beside_outputs(run: Run, rule: Rule, files: tuple[str, ...]) -> Iterator[Finding]:
    """Report a derivative without a graph that a residual adds to its function."""
    drawn = [event for event in run.of(Differentiated) if event.site and event.reached & run.owned]
    if any(event.create for event in drawn):
        return  # see derivatives_without_graph
    sites = {event.site for event in run.of(Backward) if event.reached & run.owned}
    in_losses: set[int] | None = None
    for site in dict.fromkeys(event.site for event in drawn if not event.asked):
        returned = isinstance(statement_at(site[0]), ast.Return)  # from a function that only differentiates
        total = next((each for frame in site[returned : returned + 1] for each in _residuals(frame)), None)
        if total is not None and in_losses is None:
            in_losses = {id(node) for each in sites for _, node in slice_at(each, files).nodes}
        if total is None or in_losses is None or id(total) not in in_losses:
            continue
        yield rule.finding(
            site[0],
            f"Line {total.lineno} combines this derivative with its function in the loss, but the "
            "derivative has no graph: it counts as a constant.",
            why="The loss includes the derivative, but training does not minimize it.",
            advice=WITH_GRAPH,
            fix=with_graph,
            count=sum(event.site == site for event in drawn),
            evidence={"added_at": total.lineno},
        )


def _residuals(frame: Frame) -> Iterator[ast.expr]:
    """Yield the sums and loss calls that combine the derivative taken at a line with the function's value."""
    scope, statement = scope_at(frame), statement_at(frame)
    calls = [
        node
        for node in ast.walk(statement or ast.Pass())
        if isinstance(node, ast.Call) and node.args + node.keywords
    ]
    taken = [call for call in calls if called(call) == "grad"] or [
        call for call in calls if len(call.args) > 1
    ]
    outputs = argument(taken[0], 0, "outputs") if taken else None
    given = argument(taken[0], 1, "inputs") if taken else None
    if scope is None or outputs is None or given is None:
        return
    without = _named_at(frame, scope)
    beside = names_in([outputs], ast.Load)
    values = [each.value for name in beside for each in definitions(scope).get(name, ())]
    summed = [value for value in values if isinstance(value, ast.Call) and called(value) in ("sum", "mean")]
    beside = (beside | names_in(summed, ast.Load)) - names_in([given], ast.Load) - without
    for node in own_nodes(scope.node):
        sides: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            sides = [node.left, node.right]
        elif isinstance(node, ast.Call) and called(node) in _ERRORS and len(node.args) > 1:
            sides = node.args[:2]
        if len(sides) != 2 or _is_detached(node, scope):
            continue
        for side, other in (sides, sides[::-1]):
            read = names_in([side], ast.Load)
            of_derivative = read & without or any(each is taken[0] for each in ast.walk(side))
            if (
                of_derivative
                and not read & beside - names_in(taken, ast.Load)
                and names_in([other], ast.Load) & beside
            ):
                yield node  # type: ignore[misc]


def _is_detached(node: ast.AST, scope: Scope) -> bool:
    """Return whether the function detaches an expression, or a variable that contains it."""
    holders = {
        name for name, several in definitions(scope).items() for each in several if _holds(each.value, node)
    }
    for call in own_nodes(scope.node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "detach":
            value = call.func.value
            if _holds(value, node) or names_in([value], ast.Load) & holders:
                return True
    line = Frame(scope.file, getattr(node, "lineno", 0), "")
    return no_grad_around(line) is not None


def _holds(value: ast.AST, node: ast.AST) -> bool:
    return any(each is node for each in ast.walk(value))


def inner_steps_without_graph(run: Run, rule: Rule, files: tuple[str, ...]) -> Iterator[Finding]:
    """Yield inner gradients without a graph from which later inner gradients with a graph are computed (MAML)."""
    found: dict[Frame, tuple[Frame, int]] = {}
    first: dict[Frame, Differentiated] = {}
    for event in run.of(Differentiated, Stepped):
        if isinstance(event, Stepped):
            first.clear()
        elif event.site and event.create and not event.asked:
            for frame, earlier in first.items():
                here = event.site[0]
                if (
                    (here.file, here.function) == (frame.file, frame.function)
                    and earlier.asked <= event.reached
                    and slice_at(event.site, files).holds(frame)
                ):
                    found[frame] = here, found.get(frame, (here, 0))[1] + 1
        elif event.site and not event.create and event.asked & run.owned:
            first[event.site[0]] = event
    for frame, (later, times) in found.items():
        yield rule.finding(
            frame,
            f"This inner gradient has no graph, but the gradient of line {later.line} depends on it and has a "
            "graph: the outer loss is differentiated through only some of the inner steps.",
            why="The result is neither the full gradient of MAML nor the first-order approximation.",
            advice=f"{WITH_GRAPH} For a first-order method, remove create_graph=True in line {later.line} too.",
            fix=with_graph,
            severity="warning",
            count=times,
            evidence={"again_in_line": later.line},
        )


def _named_at(frame: Frame, scope: Scope) -> set[str]:
    """Return the variables of a function that only the statement at this line assigns."""
    statement = statement_at(frame)
    return {
        name
        for name, several in definitions(scope).items()
        if all(each.statement is statement for each in several)
    }


def _sums(scope: Scope) -> list[ast.BinOp]:
    return [
        node
        for node in own_nodes(scope.node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))
    ]


def _adds(total: ast.BinOp, without: set[str], beside: set[str]) -> bool:
    """Return whether one side of a sum reads only names of ``without``, and the other side names of ``beside``."""
    left, right = names_in([total.left], ast.Load), names_in([total.right], ast.Load)
    return any(a & without and not a & beside and b & beside for a, b in ((left, right), (right, left)))
