"""Apply a fix to the text of a source, at the lines and columns that its syntax tree names."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gradgate.checker.fixes._fix import Change, Delete, Fix, Insert, Move, Replace

# Changes that need a line come before those that may remove it.
_ORDER = (Insert, Move, Delete, Replace)


class _MisfitError(Exception):
    """A change does not fit the source or would break it."""


class _Line(NamedTuple):
    number: int  # in the source, or 0
    text: str


def rewritten(source: str, fix: Fix) -> str | None:
    """Return the source with a fix applied, or None if the fix does not fit the source or would break it."""
    lines = [_Line(number, text) for number, text in enumerate(source.split("\n"), 1)]
    try:
        before = ast.parse(source)
        for change in _sequence(fix):
            lines = _Source(lines).after(change)
        after = "\n".join(line.text for line in lines)
        tree = ast.parse(after)
    except (_MisfitError, SyntaxError, ValueError):
        return None
    unknown = _names(tree) - _names(before) - _bound(tree) - {*dir(builtins)}
    return None if unknown or after == source else after


def _sequence(fix: Fix) -> list[Change]:
    """Return the changes in an order such that texts beside the same line keep the order of the fix."""
    late = [change for change in reversed(fix) if getattr(change, "after", 0)]
    early = [change for change in fix if change not in late]
    return sorted([*early, *late], key=lambda change: _ORDER.index(type(change)))


class _Source:
    """The lines of a source, and its syntax tree."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self._text = "\n".join(line.text for line in lines)
        self._tree = ast.parse(self._text)

    def after(self, change: Change) -> list[_Line]:
        """Return the lines with a change."""
        if isinstance(change, Replace):
            return self._replaced(change)
        if isinstance(change, Insert):
            at, indent = self._gap(change.before, change.after)
            new = [_Line(0, indent + text if text else "") for text in change.text.split("\n")]
            return [*self._lines[:at], *new, *self._lines[at:]]
        if isinstance(change, Delete):
            removed = self._decorator(change.line) or self._simple(change.line)
            first, end = removed.lineno - 1, removed.end_lineno or 0
            return [*self._lines[:first], *self._lines[end:]]
        return self._moved(change)

    def _statement(self, line: int) -> ast.stmt:
        """Return the innermost statement on a line, which must not share its lines with another statement."""
        at = next((at for at, known in enumerate(self._lines, 1) if line and known.number == line), 0)
        holding = [node for node in _statements(self._tree) if _first(node) < at <= (node.end_lineno or 0)]
        if not holding:
            raise _MisfitError
        found = min(reversed(holding), key=lambda node: (node.end_lineno or 0) - _first(node))
        rest = self._lines[(found.end_lineno or 0) - 1].text.encode()[found.end_col_offset :].decode().strip()
        if self._indent(found).strip() or (rest and not rest.startswith("#")):
            raise _MisfitError  # several statements on one line
        return found

    def _simple(self, line: int) -> ast.stmt:
        found = self._statement(line)
        if hasattr(found, "body"):
            raise _MisfitError
        return found

    def _indent(self, statement: ast.stmt) -> str:
        return self._lines[statement.lineno - 1].text.encode()[: statement.col_offset].decode()

    def _range(self, statement: ast.stmt) -> tuple[int, int]:
        """Return the lines of a statement and of the comments directly above it, as a slice."""
        first, comment = _first(statement), self._indent(statement) + "#"
        while first and self._lines[first - 1].text.startswith(comment):
            first -= 1
        return first, statement.end_lineno or 0

    def _gap(self, before: int, after: int) -> tuple[int, str]:
        """Return where to insert lines, and their indentation."""
        statement = self._statement(before or after)
        return self._range(statement)[0 if before else 1], self._indent(statement)

    def _decorator(self, line: int) -> ast.expr | None:
        nodes = (each for node in ast.walk(self._tree) for each in getattr(node, "decorator_list", ()))
        return next((node for node in nodes if self._lines[node.lineno - 1].number == line), None)

    def _shifted(self, statement: ast.stmt, first: int, end: int, old: str, new: str) -> list[_Line]:
        """Return lines of a statement with another indentation. A string of several lines cannot be shifted."""
        if old.strip():
            raise _MisfitError  # a body on the line of its header
        texts = (node for node in ast.walk(statement) if isinstance(node, ast.Constant | ast.JoinedStr))
        if old != new and any(node.lineno != node.end_lineno for node in texts):
            raise _MisfitError
        return [
            _Line(number, new + text[len(old) :] if text.startswith(old) and text else text)
            for number, text in self._lines[first:end]
        ]

    def _moved(self, change: Move) -> list[_Line]:
        moved, lines = self._simple(change.line), self._lines
        at, indent = self._gap(change.before, change.after)
        first, end = self._range(moved)
        low, high = sorted((at, first if at <= first else end))
        names = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
        own = {name.id: isinstance(name.ctx, ast.Store) for name in names if first < name.lineno <= end}
        for name in names:
            between = low < name.lineno <= high and not first < name.lineno <= end
            if between and name.id in own and (own[name.id] or isinstance(name.ctx, ast.Store)):
                raise _MisfitError  # the statement would read or leave another value
        new = self._shifted(moved, first, end, self._indent(moved), indent)
        if at <= first:
            return [*lines[:at], *new, *lines[at:first], *lines[end:]]
        return [*lines[:first], *lines[end:at], *new, *lines[at:]]

    # Expressions

    def _replaced(self, change: Replace) -> list[_Line]:
        statement, old = self._statement(change.line), _meaning(_expression(change.old))
        found = [node for node in _expressions(statement) if _meaning(node) == old]
        if len(found) != 1:
            raise _MisfitError
        new = _expression(change.new)
        start, end = _span(self._text, found[0])
        texts = [*self._candidates(found[0], new, change.new)]
        expected = _meaning(_Swap(found[0], new).visit(self._tree))
        for cut, text in texts:
            whole = self._text[: start - cut] + text + self._text[end + cut :]
            with suppress(SyntaxError):
                if _meaning(ast.parse(whole)) == expected:
                    return self._numbered(whole.split("\n"), start, end)
        raise _MisfitError

    def _numbered(self, texts: list[str], start: int, end: int) -> list[_Line]:
        """Return new texts of the lines, of which those from ``start`` to ``end`` differ."""
        numbers, more = [line.number for line in self._lines], len(texts) - len(self._lines)
        if more:
            first, last = self._text.count("\n", 0, start) + 1, self._text.count("\n", 0, end) + 1
            numbers[first:last] = [0] * (last - first + more)
        return list(map(_Line, numbers, texts))

    def _candidates(self, old: ast.expr, new: ast.expr, text: str) -> Iterator[tuple[int, str]]:
        """Yield texts for the new expression, best first, each with how many parentheses around the old one go.

        Parts of the old expression that are repeated in the new one keep their formatting.
        """
        start, end = _span(self._text, old)
        if isinstance(old, ast.Call) and isinstance(new, ast.Call) and (old.args or old.keywords):
            # An argument that is added is laid out as the others are.
            ends = sorted(_span(self._text, node) for node in [*old.args, *old.keywords])
            more = [ast.unparse(node) for node in [*new.args, *new.keywords][len(ends) :]]
            between = self._text[ends[-2][1] : ends[-1][0]] if len(ends) > 1 else ", "
            added = "".join((between if between.strip() == "," else ", ") + part for part in more)
            yield 0, self._text[start : ends[-1][1]] + added + self._text[ends[-1][1] : end]
        known = {
            _meaning(node): self._text[slice(*_span(self._text, node))] for node in [*_expressions(old), old]
        }
        kept = _with_kept(text.strip(), known)
        repeated = any(_meaning(node) == _meaning(old) for node in _expressions(new))
        around = self._text[max(start - 1, 0) : start] + self._text[end : end + 1]
        if around == "()" and (
            repeated or isinstance(new, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        ):
            yield 1, kept
        yield from ((0, kept), (0, f"({kept})"), (0, text))


class _Swap(ast.NodeTransformer):
    """Replaces an expression in a tree."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the new expression for the old one, and other nodes with their parts replaced."""
        return self._new if node is self._old else self.generic_visit(node)


def _first(statement: ast.stmt) -> int:
    """Return how many lines are above a statement and its decorators."""
    nodes: list[Any] = [statement, *getattr(statement, "decorator_list", ())]
    return min(int(node.lineno) for node in nodes) - 1


def _statements(tree: ast.AST) -> list[ast.stmt]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in a node. For a statement with a block, yield only those in the header."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        if not isinstance(child, ast.stmt):
            yield from _expressions(child)


def _expression(text: str) -> ast.expr:
    return ast.parse(f"({text.strip()}\n)", mode="eval").body


def _meaning(node: ast.AST) -> str:
    """Return a syntax tree as text, which does not depend on formatting."""
    return re.sub(r"(, )?ctx=\w+\(\)", "", ast.dump(node))


def _span(text: str, node: Any) -> tuple[int, int]:
    """Return where an expression begins and ends in a text."""
    lines = text.split("\n")

    def at(line: int, column: int) -> int:
        above = sum(len(each) + 1 for each in lines[: line - 1])
        return above + len(lines[line - 1].encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


def _with_kept(text: str, known: Mapping[str, str]) -> str:
    """Return an expression in which the known parts have their known texts."""

    def parts(node: ast.AST) -> Iterator[tuple[int, int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and (kept := known.get(_meaning(child))) is not None:
                yield (*_span(text, child), kept)
            else:
                yield from parts(child)

    for start, end, kept in sorted(parts(ast.parse(text, mode="eval")), reverse=True):
        text = text[:start] + kept + text[end:]
    return text


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _bound(tree: ast.AST) -> set[str]:
    """Return the names that are bound anywhere in a file."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
    return names
