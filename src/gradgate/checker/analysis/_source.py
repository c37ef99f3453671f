"""Syntax trees of the user's files, and the statements, loops and functions around a line. Nothing is executed."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TypeVar

from gradgate.events import Frame, Site

Node = TypeVar("Node", bound=ast.AST)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """Parse a file, or return None if it can't be read or parsed, such as interactive code."""
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def nodes_of(files: Iterable[str]) -> Iterator[ast.AST]:
    """Yield the nodes of the files that can be read."""
    return (node for tree in map(tree_of, files) if tree is not None for node in ast.walk(tree))


def inside(kind: type[Node], *roots: ast.AST | None) -> list[Node]:
    """Return the nodes of one kind in these trees."""
    nodes = (node for root in roots if root is not None for node in ast.walk(root))
    return [node for node in nodes if isinstance(node, kind)]


def spans(node: ast.AST, line: int) -> bool:
    """Return whether a line belongs to a node."""
    return bool(getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0))


def text_of(frame: Frame) -> str:
    """Return a line's text, without its indentation."""
    return linecache.getline(frame.file, frame.line).strip()


def whole_text(file: str) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    return "".join(linecache.getlines(file))


@functools.lru_cache(maxsize=4096)
def path_to(file: str, line: int) -> tuple[ast.AST, ...]:
    """Return the nodes that enclose a line, from the module to the innermost statement."""
    path: list[ast.AST] = []
    inner: ast.AST | None = tree_of(file)
    while inner is not None:
        path.append(inner)
        inner = next(
            (child for child in _statements(inner) if _first(child) <= line <= (child.end_lineno or 0)), None
        )
    return tuple(path)


def _first(statement: ast.stmt) -> int:
    """Return the first line of a statement or of its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements in the blocks of a node, including handlers and cases."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from _statements(child)
        elif isinstance(child, ast.stmt):
            yield child


def block_of(parent: ast.AST, child: ast.AST) -> list[ast.stmt]:
    """Return the block of ``parent`` that holds ``child``: the body, "else" or "finally"; [] if none does."""
    blocks: Iterator[list[ast.stmt]] = (getattr(parent, name, []) for name in ("body", "orelse", "finalbody"))
    return next((block for block in blocks if isinstance(block, list) and child in block), [])


def statement_at(frame: Frame) -> ast.stmt | None:
    """Return the innermost statement at a line."""
    path = path_to(frame.file, frame.line)
    return path[-1] if len(path) > 1 and isinstance(path[-1], ast.stmt) else None


def function_at(frame: Frame) -> ast.AST | None:
    """Return the innermost function (or the module) around a line."""
    path = reversed(path_to(frame.file, frame.line))
    return next((node for node in path if isinstance(node, (*FUNCTIONS, ast.Module))), None)


def loops_around(frame: Frame) -> list[ast.For | ast.While]:
    """Return the loops around a line, in the same function, innermost first."""
    return loops_in(path_to(frame.file, frame.line))


def loops_in(path: Sequence[ast.AST]) -> list[ast.For | ast.While]:
    """Return the loops of the innermost function on a path, innermost first."""
    own = takewhile(lambda node: not isinstance(node, FUNCTIONS), reversed(path))
    return [node for node in own if isinstance(node, (ast.For, ast.While))]


def same_statement(frame: Frame, other: Frame) -> bool:
    """Return whether two lines belong to one statement."""
    if frame.file != other.file:
        return False
    if frame.line == other.line:
        return True
    first, second = statement_at(frame), statement_at(other)
    return first is not None and first is second and not hasattr(first, "body")


def next_use(frame: Frame, before: int) -> Frame | None:
    """Return the line where the same function next reads a name that this line assigns."""
    statement = statement_at(frame)
    if not isinstance(statement, ast.Assign):
        return None
    names = {node.id for node in inside(ast.Name, *statement.targets)}
    read = [node for node in inside(ast.Name, function_at(frame)) if isinstance(node.ctx, ast.Load)]
    after = range((statement.end_lineno or frame.line) + 1, before + 1)
    line = min((node.lineno for node in read if node.id in names and node.lineno in after), default=None)
    return None if line is None else frame._replace(line=line)


def files_of(sites: Iterable[Site]) -> tuple[str, ...]:
    """Return the files that these sites name."""
    return tuple(dict.fromkeys(frame.file for site in sites for frame in site))
