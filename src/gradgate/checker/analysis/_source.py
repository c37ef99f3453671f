"""The user's source: what a line belongs to. Nothing is executed."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

from gradgate.events import Frame, Site


@functools.lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """Parse a file, or return None where it can't be read or parsed: typed-in code, a page with code in it."""
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def text_of(frame: Frame) -> str:
    """Return a line's text, without its indentation."""
    return linecache.getline(frame.file, frame.line).strip()


def whole_text(file: str) -> str:
    """Return the text of a file, or "" where it cannot be read."""
    return "".join(linecache.getlines(file))


@functools.lru_cache(maxsize=4096)
def path_to(file: str, line: int) -> tuple[ast.AST, ...]:
    """Return what encloses a line, from the module to the innermost statement."""
    tree = tree_of(file)
    if tree is None:
        return ()
    path: list[ast.AST] = [tree]
    while True:
        for child in _statements(path[-1]):
            first = min([child.lineno, *(d.lineno for d in getattr(child, "decorator_list", ()))])
            if first <= line <= (child.end_lineno or child.lineno):
                path.append(child)
                break
        else:
            return tuple(path)


def _statements(node: ast.AST) -> Iterator[ast.stmt | ast.excepthandler]:
    for name in ("body", "orelse", "finalbody", "handlers"):
        children = getattr(node, name, ())
        if isinstance(children, list):
            for child in children:
                if isinstance(child, ast.ExceptHandler):
                    yield from _statements(child)
                elif isinstance(child, ast.stmt):
                    yield child
    for case in getattr(node, "cases", ()):
        yield from case.body


def statement_at(frame: Frame) -> ast.stmt | None:
    """Return the innermost statement that a line belongs to."""
    path = path_to(frame.file, frame.line)
    return path[-1] if len(path) > 1 and isinstance(path[-1], ast.stmt) else None


def function_at(frame: Frame) -> ast.AST | None:
    """Return the innermost function (or the module) around a line."""
    for node in reversed(path_to(frame.file, frame.line)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            return node
    return None


def condition_around(site: Site, beside: Site) -> Frame | None:
    """Return the ``if`` that decides whether ``site`` is reached but not whether ``beside`` is.

    Looks, from the innermost frame of ``site`` outwards, for an ``if`` that contains the running line but not the
    line of the same function that is in ``beside``.
    """
    others = {(frame.file, frame.function): frame.line for frame in beside}
    for frame in site:
        other = others.get((frame.file, frame.function))
        for node in reversed(path_to(frame.file, frame.line)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While)) and (
                other is not None and _holds(node, other)
            ):
                break
            if isinstance(node, ast.If) and frame.line > node.lineno:
                if other is not None and _holds(node, other):
                    break
                return Frame(frame.file, node.lineno, frame.function)
        if other is not None:
            return None
    return None


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return bool(first <= line <= last)


def loops_around(frame: Frame) -> list[ast.For | ast.While]:
    """Return the loops around a line, in its own function, the innermost first."""
    loops: list[ast.For | ast.While] = []
    for node in reversed(path_to(frame.file, frame.line)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        if isinstance(node, (ast.For, ast.While)):
            loops.append(node)
    return loops


def same_statement(frame: Frame, other: Frame) -> bool:
    """Say whether two lines belong to one statement."""
    if frame.file != other.file:
        return False
    if frame.line == other.line:
        return True
    first, second = statement_at(frame), statement_at(other)
    return first is not None and first is second and not hasattr(first, "body")


def next_use(frame: Frame, before: int) -> Frame | None:
    """Return the next line of the same function that reads what a line's statement assigns."""
    statement, function = statement_at(frame), function_at(frame)
    if not isinstance(statement, ast.Assign) or function is None:
        return None
    names = {
        node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)
    }
    uses = sorted(
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    )
    last = statement.end_lineno or frame.line
    return next((Frame(frame.file, line, frame.function) for line in uses if last < line <= before), None)


def in_condition(frame: Frame) -> bool:
    """Say whether a line of a function runs only under some condition."""
    path = path_to(frame.file, frame.line)
    functions = [place for place, node in enumerate(path) if isinstance(node, ast.FunctionDef)]
    return bool(functions) and any(isinstance(node, ast.If) for node in path[functions[-1] :])
