"""Keeps the weights of log-probabilities, such as advantages, detached when an edit puts values into the graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from gradgate.checker.analysis._constant_summands import CONSTANT
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import scope_at, statements_at
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._statement import Statement, operand
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import FixAt
from gradgate.events import Backward, Frame

_LOG_PROBABILITY = re.compile(r"log_?p|ratio\b|surr", re.IGNORECASE)


def weights_of(at: Statement) -> dict[ast.expr, ast.BinOp]:
    """Return the factors of log-probabilities that are computed from a statement's value, with their products."""
    products = [node for node in inside(ast.BinOp, at.module) if isinstance(node.op, ast.Mult)]
    sides = [
        each for node in products for each in ((node, node.left, node.right), (node, node.right, node.left))
    ]
    return {
        weight: product
        for product, weight, other in sides
        if _LOG_PROBABILITY.search(ast.unparse(other)) and not _LOG_PROBABILITY.search(ast.unparse(weight))
        if (scope := scope_at(Frame(at.file, weight.lineno, ""))) is not None
        if _holds(Slice([(scope, weight)], (at.file,)), at)
    }


def has_another_use(run: Run, at: Statement, weights: Collection[ast.expr]) -> bool:
    """Return whether a loss uses a statement's value in another way than through these weights."""
    sites = [event.site[0] for event in run.of(Backward) if event.site]
    roots = [
        (scope, node)
        for site in dict.fromkeys(sites)
        if (scope := scope_at(site)) is not None
        for node in statements_at(site)
    ]
    return _holds(Slice(roots, run.files, lambda _, node: CONSTANT if node in weights else None), at)


def detached_as_weight(at: Statement, weights: dict[ast.expr, ast.BinOp], fix: FixAt) -> Fix:
    """Make an edit that keeps a value's graph, and detach the value where it is a weight."""
    change = fix(at)
    for weight, product in weights.items():
        sides = [
            f"{operand(side)}.detach()" if side is weight else ast.unparse(side)
            for side in (product.left, product.right)
        ]
        change = change and (*change, Replace(product.lineno, ast.unparse(product), " * ".join(sides)))
    return change


def _holds(value: Slice, at: Statement) -> bool:
    return any(
        file == at.file and at.line <= getattr(node, "lineno", 0) <= (at.node.end_lineno or at.line)
        for file, node in value.nodes
    )
