"""Decides whether the user's code reads gradients as values between a backward call and the call that clears them.

Fisher information, gradient norms and weights of losses are computed from gradients that no step uses.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from gradgate.checker.analysis._scopes import called, functions, own_calls, own_nodes
from gradgate.checker.analysis._source import function_at, inside, loops_around, spans, tree_of
from gradgate.events import Frame, Site

_DEPTH = 3  # calls that are followed
_Part = tuple[ast.AST, range]  # a function, and lines of it


def reads_gradients(backward: Site, cleared: Site) -> bool:
    """Return whether code reads a ``.grad`` after a backward call and before the gradients are cleared.

    Args:
        backward: the backward call.
        cleared: the call that clears the gradients; () if its line is unknown.
    """
    files = _with_imported({frame.file for frame in (*backward, *cleared)})
    parts, seen = list(_between(backward[::-1], cleared[::-1])), set[str]()
    for _ in range(_DEPTH):
        if any(node.lineno in lines for function, lines in parts for node in _reads(function)):
            return True
        calls = [call for function, lines in parts for call in own_calls(function) if call.lineno in lines]
        names = {called(call) for call in calls} - seen
        seen |= names
        parts = [(scope.node, _lines(scope.node)) for name in names for scope in functions(name, files)]
    return False


def _with_imported(files: set[str]) -> set[str]:
    """Return files, and the modules beside them that they import. Imported modules may read gradients."""
    imports = [(file, node.module or "") for file in files for node in inside(ast.ImportFrom, tree_of(file))]
    imports += [
        (file, each.name)
        for file in files
        for node in inside(ast.Import, tree_of(file))
        for each in node.names
    ]
    beside = {f"{Path(file).parent.joinpath(*name.split('.'))}.py" for file, name in imports}
    return files | {path for path in beside if Path(path).exists()}


def _between(backward: Site, cleared: Site) -> Iterator[_Part]:
    """Yield the lines that run between two calls. Both sites begin with the outermost frame."""
    while backward[1:] and cleared[1:] and backward[0] == cleared[0]:
        backward, cleared = backward[1:], cleared[1:]
    if backward and cleared and (function := function_at(backward[0])) is function_at(cleared[0]):
        start, end = backward[0].line, cleared[0].line
        if function is not None and start < end:
            yield function, range(start, end + 1)
        elif function is not None:  # the next iteration clears
            loops = [loop for loop in loops_around(backward[0]) if spans(loop, end)]
            around = _lines(loops[0] if loops else function)
            yield function, range(start, around.stop)
            yield function, range(around.start, end + 1)
        backward, cleared = backward[1:], cleared[1:]
    for frames, after in ((backward, True), (cleared, False)):
        for frame in frames:
            yield from _rest(frame, after=after)


def _rest(frame: Frame, *, after: bool) -> Iterator[_Part]:
    """Yield the lines of a frame's function that run after the frame's line, or before it."""
    function, loops = function_at(frame), loops_around(frame)
    if function is not None:
        again, whole = _lines(loops[-1]) if loops else range(frame.line, frame.line + 1), _lines(function)
        yield function, range(again.start, whole.stop) if after else range(whole.start, again.stop)


def _lines(node: ast.AST) -> range:
    """Return a function's or a loop's lines. A module has no lines of its own."""
    return range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 10**9) + 1)


@functools.lru_cache(maxsize=256)
def _reads(function: ast.AST) -> tuple[ast.Attribute, ...]:
    """Return where a function reads a gradient's value. Writes and ``p.grad is None`` don't count."""
    nodes = own_nodes(function)
    parents = {child: parent for parent in nodes for child in ast.iter_child_nodes(parent)}
    grads = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr.lstrip("_") == "grad"]
    return tuple(
        node for node in grads if isinstance(node.ctx, ast.Load) and not _only_written(node, parents)
    )


def _only_written(gradient: ast.Attribute, parents: dict[ast.AST, ast.AST]) -> bool:
    node: ast.expr = gradient
    parent = parents.get(node)
    while isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:  # p.grad.data[rows]
        node, parent = parent, parents.get(parent)
    if not isinstance(getattr(node, "ctx", None), ast.Load):
        return True
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)
    if isinstance(parent, ast.Call) and parent.func is node:  # torch.autograd.grad(), or p.grad.mul_(c)
        in_place = isinstance(node, ast.Attribute) and node.attr.endswith("_")
        return node is gradient or (in_place and isinstance(parents.get(parent), ast.Expr))
    return False
