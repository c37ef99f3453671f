"""Finds the summand inside a mean that is a constant although it was computed from the loss's own graph.

A value without a graph may be intended: the log-probabilities of an older policy, a maximum that is subtracted
before an exponential and added after its logarithm, or a teacher's entropy. So a summand counts only if its value
comes from the graph of the same loss and reaches the loss, and nothing else, only through sums and means.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

from gradgate.checker.analysis._constant_summands import TrainedLines, summands
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Scope,
    called,
    definitions,
    key_of,
    own_nodes,
    scope_at,
    statements_at,
)
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import path_to, statement_at
from gradgate.events import Frame, Site

_NEW = frozenset(
    (
        "zeros",
        "ones",
        "full",
        "empty",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand",
        "randn",
        "arange",
        "tensor",
    )
)
_LINEAR = frozenset(
    (
        "sum",
        "mean",
        "squeeze",
        "unsqueeze",
        "view",
        "reshape",
        "flatten",
        "expand",
        "stack",
        "cat",
        "float",
        "to",
    )
)
_NOWHERE = Frame("", 0, "")


def dead_summands(
    run: Run, sites: Iterable[Site], files: Iterable[str], cuts: Collection[tuple[str, int]]
) -> Iterator[tuple[ast.expr, Site, Frame]]:
    """Yield each of these summands, the line that adds it, and the line that detaches it.

    Args:
        run: run of the script.
        sites: the lines that add a constant to a value with a graph.
        files: the files of the run.
        cuts: file and line of each cut whose value comes from the loss's own graph.
    """
    files = tuple(files)
    lines = TrainedLines(run, files)

    def ends(file: str, node: ast.AST) -> Frame | None:
        return _NOWHERE if isinstance(node, ast.Call) and called(node) in _NEW else lines.cut(file, node)

    for site in sites:
        scope = scope_at(site[0])
        for statement in statements_at(site[0]) if scope is not None else ():
            assert scope is not None  # noqa: S101
            added = isinstance(statement, ast.AugAssign)
            parts = list(summands(scope, getattr(statement, "value", None), added))
            for part in parts:
                value = Slice([(scope, part)], files, ends)
                found = set(value.ended) - {_NOWHERE}
                nodes = [(file, node) for file, node in value.nodes if id(node) not in value.resolved]
                if len(found) != 1 or any(lines.is_live(file, node) for file, node in nodes):
                    continue
                (cut,) = found
                if cut[:2] not in cuts or not all(_is_linear(node) for _, node in nodes):
                    continue
                others = _names(each for each in parts if each is not part)
                if others & _cut_names(cut, part) or not _is_from_the_graph(lines, files, cut):
                    continue
                if all(
                    _is_read_once(file, node)
                    for file, node in nodes
                    if _leads_to(cut, file, node, files, ends)
                ):
                    yield part, site, cut


def _is_linear(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return called(node) in _LINEAR
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div))
    return isinstance(
        node,
        (ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.Tuple, ast.Subscript, ast.List, ast.Dict),
    )


def _leads_to(cut: Frame, file: str, node: ast.AST, files: tuple[str, ...], ends: object) -> bool:
    """Return whether a name's value comes from a cut."""
    scope = scope_at(Frame(file, getattr(node, "lineno", 0), ""))
    if scope is None or not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return False
    return cut in Slice([(scope, node)], files, ends).ended  # type: ignore[arg-type]


def _is_read_once(file: str, name: ast.AST) -> bool:
    """Return whether a function reads a name once, not counting sums into the name, prints and ``item()``."""
    assert isinstance(name, ast.Name)  # noqa: S101
    scope = scope_at(Frame(file, name.lineno, ""))
    reads = 0
    for node in own_nodes(scope.node) if scope is not None else ():
        if not isinstance(node, ast.stmt):
            continue
        again = isinstance(node, ast.Assign) and name.id in {key_of(target) for target in node.targets}
        if again or isinstance(node, (ast.Expr, ast.AugAssign)):
            continue
        own = [
            inner for inner in _own_expressions(node) if isinstance(inner, ast.Name) and inner.id == name.id
        ]
        numbers = {
            id(inner)
            for call in _own_expressions(node)
            if isinstance(call, ast.Call) and called(call) in ("item", "float", "tolist")
            for inner in ast.walk(call)
        }
        reads += sum(isinstance(each.ctx, ast.Load) and id(each) not in numbers for each in own)
    return reads <= 1


def _own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, except in statements inside it."""
    todo = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    for node in todo:
        yield from (inner for inner in ast.walk(node) if not isinstance(inner, ast.stmt))


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    inner = (each for node in nodes for each in ast.walk(node))
    return {each.id for each in inner if isinstance(each, ast.Name)}


def _cut_names(cut: Frame, part: ast.expr) -> set[str]:
    """Return the names of the detached values, if the summand itself contains the cut."""
    here = getattr(part, "lineno", 0) <= cut.line <= (getattr(part, "end_lineno", 0) or 0)
    return _names([part]) if here else set()


def _is_from_the_graph(lines: TrainedLines, files: tuple[str, ...], cut: Frame) -> bool:
    """Return whether a ``no_grad`` block computes one value from an earlier value with a graph."""
    scope, block = scope_at(cut), statement_at(cut)
    if not isinstance(block, ast.With):
        block = next(
            (node for node in reversed(path_to(cut.file, cut.line)) if isinstance(node, ast.With)), None
        )
        if block is None or block.lineno != cut.line:
            return True  # detach or data
    if scope is None:
        return False
    stored = {
        node.id
        for statement in block.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    given = {
        node.id
        for statement in block.body
        for call in ast.walk(statement)
        if isinstance(call, ast.Call)
        for each in call.args
        for node in ast.walk(each)
        if isinstance(node, ast.Name)
    }
    outside = [name for name in given - stored if _is_computed(lines, files, scope, name)]
    return len(stored) == 1 and bool(outside)


def _is_computed(lines: TrainedLines, files: tuple[str, ...], scope: Scope, name: str) -> bool:
    """Return whether a variable holds the output of a trained module."""
    values = [each.value for each in definitions(scope).get(name, ())]
    return any(
        isinstance(node, ast.Call) and lines.is_live(file, node)
        for value in values
        for file, node in Slice([(scope, value)], files, lines.cut).nodes
    )
