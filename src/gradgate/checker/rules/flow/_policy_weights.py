"""Finds the weights of log-probabilities, such as advantages, which stay detached if their values get a graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from gradgate.checker.analysis._constant_summands import CONSTANT
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import scope_at, statements_at
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._statement import Statement
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


def _holds(value: Slice, at: Statement) -> bool:
    return any(
        file == at.file and at.line <= getattr(node, "lineno", 0) <= (at.node.end_lineno or at.line)
        for file, node in value.nodes
    )
