"""Finds terms whose weight is 0 in the whole run because a division rounds down."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, key_of, scope_at, scopes_of
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import inside, nodes_of, path_to, statement_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, Site

_LEAST = 5  # backward calls


def zero_weights(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report the divisions that round a weight down to 0, if the weight is 0 in every backward call."""
    weights = grouped(
        (site, (number, term))
        for event in run.of(Backward)
        for term in event.terms
        for op, number, site in term.factors
        if op == "mul" and site and run.ended == "finished"
    )
    for site, several in weights.items():
        if len(several) < _LEAST or any(number for number, _ in several):
            continue
        for file, share in _rounded(run, site)[:1]:
            exact = f"{ast.unparse(share.left)} / {ast.unparse(share.right)}"
            yield rule.finding(
                Frame(file, share.lineno, ""),
                f"{exact} is rounded down to 0, so a term of the loss in line {site[0].line} has the weight 0 in "
                f"all {len(several)} watched backward calls.",
                why="The term is computed, but training does not minimize it.",
                advice=f"Do not round: {exact}.",
                count=len(several),
                evidence={"calls": len(several)},
                about=union(term.reach for _, term in several),
            )


def _rounded(run: Run, site: Site) -> list[tuple[str, ast.BinOp]]:
    """Return the rounded divisions from which the weight of a term is computed, and their files."""
    scope, statement = scope_at(site[0]), statement_at(site[0])
    slices = [Slice([(scope, each)], run.files).nodes for each in _factors(statement) if scope is not None]
    if not (isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Mult)):
        slices = sorted(slices, key=len)[:-1]  # the last one is that of the term itself
    nodes = {id(node) for each in slices for _, node in each}
    return [
        (file, share)
        for file in run.files
        for node in nodes_of([file])
        if id(node) in nodes and (share := _share(node)) is not None and _is_ramp(run, file, node, share)
    ]


def _factors(statement: ast.AST | None) -> list[ast.expr]:
    """Return the factors of the products in a statement, without the target of ``*=``."""
    found: list[ast.expr] = []
    for node in inside(ast.BinOp, statement):
        found += [node.left, node.right] if isinstance(node.op, ast.Mult) else []
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Mult):
        found.append(statement.value)
    return [each for each in found if not (isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult))]


def _share(node: ast.AST) -> ast.BinOp | None:
    """Return the division in ``a // b``, ``int(a / b)`` or ``math.floor(a / b)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return node
    rounds = isinstance(node, ast.Call) and called(node) in ("int", "floor")
    shares = [each for each in inside(ast.BinOp, node) if rounds and isinstance(each.op, ast.Div)]
    return shares[0] if len(shares) == 1 else None


def _is_ramp(run: Run, file: str, node: ast.AST, share: ast.BinOp) -> bool:
    """Return whether a counter is divided by its loop's length, or the result is clipped: a ramp, no staircase."""
    counted = any(
        isinstance(each.statement, (ast.For, ast.AugAssign))
        for each_file in run.files
        for scope in scopes_of(each_file)
        for part in ast.walk(share.left)
        for each in definitions(scope).get(key_of(part), ())
    )
    around = [
        each
        for part in path_to(file, share.lineno)[-1:]
        for each in ast.walk(part)
        if node in map(_unconverted, ast.iter_child_nodes(each))
    ]
    calls = [each for each in (*around, *inside(ast.Call, node)) if isinstance(each, ast.Call)]
    clipped = any(called(each) in ("min", "clip", "clamp") for each in calls)
    return counted and (clipped or _is_length(run, file, share.right))


def _is_length(run: Run, file: str, divisor: ast.expr) -> bool:
    """Return whether a divisor is computed from the length of a loop."""
    scope = scope_at(Frame(file, divisor.lineno, ""))
    loops = [call for call in inside(ast.Call, *nodes_of(run.files)) if called(call) == "range" and call.args]
    lengths = {ast.unparse(call.args[-1]) for call in loops}
    parts = Slice([(scope, divisor)], run.files).nodes if scope is not None else ()
    return any(isinstance(part, ast.expr) and ast.unparse(part) in lengths for _, part in parts)


def _unconverted(node: ast.AST) -> ast.AST:
    """Return the argument of ``float(...)``, or the expression itself."""
    return node.args[0] if isinstance(node, ast.Call) and called(node) == "float" and node.args else node
