"""Finds sums of losses that are only displayed, while one of their summands is back-propagated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._constant_summands import has_graph
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import Scope, called, definitions, own_nodes, scope_at
from gradgate.checker.analysis._slices import files_of, slice_at
from gradgate.checker.analysis._source import statement_at
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Cut, Differentiated, Frame

_SHOWS = ("item", "detach", "tolist", "numpy")


def sums_only_shown(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report each sum that the script only converts to numbers, if losses use some of its summands but not all."""
    losses = {event.site for event in run.of(Backward, Differentiated) if event.site}
    cuts = [event for event in run.of(Cut) if event.op in _SHOWS and event.scalar and event.site]
    files = files_of([*losses, *(cut.site for cut in cuts)])
    in_losses: set[int] | None = None
    for frame, total in dict.fromkeys(each for cut in cuts for each in _sums(cut.site[0], cut.op)):
        if in_losses is None:
            in_losses = {id(node) for site in losses for _, node in slice_at(site, files).nodes}
        scope = scope_at(frame)
        if scope is None or id(total) in in_losses:
            continue
        parts = list(_parts(total))
        used = [part for part in parts if _values(scope, part) & in_losses]
        left = [part for part in parts if part not in used and has_graph(run, scope, part, files)]
        if not used or not left:
            continue
        kept, lost = ast.unparse(used[0]), ast.unparse(left[0])
        times = len(run.of(Backward))
        yield rule.finding(
            frame._replace(line=total.lineno),
            f"`{ast.unparse(total)}` is only displayed: {times} backward calls include `{kept}`, but not `{lost}`.",
            why="The sum is displayed, but training does not minimize it.",
            advice=f"Back-propagate the sum instead of `{kept}`.",
            count=times,
            evidence={"shown_at": frame.line},
        )


def _sums(shown: Frame, op: str) -> Iterator[tuple[Frame, ast.BinOp]]:
    """Yield the sums that a line shows as ``total.item()``, if the function only shows them."""
    statement, scope = statement_at(shown), scope_at(shown)
    if statement is None or scope is None:
        return
    nodes = own_nodes(scope.node)
    owners = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call) and called(node) == op):
        name = getattr(getattr(call.func, "value", None), "id", "")
        reads = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
        reads = [node for node in reads if isinstance(node.ctx, ast.Load)]
        made = definitions(scope).get(name, ())
        total = made[0].value if len(made) == 1 and isinstance(made[0].statement, ast.Assign) else None
        if isinstance(total, ast.BinOp) and all(owners.get(id(node)) in _SHOWS for node in reads):
            yield shown, total


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _parts(node.left)
        yield from _parts(node.right)
    else:
        yield node


def _values(scope: Scope, part: ast.expr) -> set[int]:
    """Return the ids of the expressions that assign the names in a summand."""
    names = [node.id for node in ast.walk(part) if isinstance(node, ast.Name)]
    return {id(each.value) for name in names for each in definitions(scope).get(name, ())}
