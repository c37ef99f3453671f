"""The place of a mistake in the user's source, and how lines there are rewritten and moved."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradgate.checks._finding import Finding
from gradgate.checks._source import loops_around, path_to
from gradgate.checks.mendings._edit import Edit
from gradgate.events import Frame

VALUES = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)  # what needs no parentheses around it


@dataclass(frozen=True)
class Spot:
    """A statement, what stands beside it, what encloses it, and the loops around it, the innermost first."""

    file: str
    statement: ast.stmt
    block: Sequence[ast.stmt]
    path: Sequence[ast.AST]
    loops: Sequence[ast.For | ast.While]

    @classmethod
    def of(cls, finding: Finding) -> Spot | None:
        """Return the innermost statement that a finding's line belongs to; None where it cannot be read."""
        path = path_to(finding.file, finding.line)
        if len(path) < 2 or not isinstance(path[-1], ast.stmt):
            return None
        for name in ("body", "orelse", "finalbody"):
            block = getattr(path[-2], name, ())
            if path[-1] in block:
                frame = Frame(finding.file, finding.line, "")
                return cls(finding.file, path[-1], block, path, loops_around(frame))
        return None

    # What is there

    def text(self, line: int) -> str:
        """Return a line as it is written."""
        return linecache.getline(self.file, line).rstrip("\r\n")

    def indent(self, line: int) -> str:
        """Return the white space at the beginning of a line."""
        text = self.text(line)
        return text[: len(text) - len(text.lstrip())]

    def source(self, node: ast.AST) -> str:
        """Return an expression as it is written, or in one line where it goes over several."""
        text = self.text(node.lineno).encode()[node.col_offset : node.end_col_offset]  # type: ignore[attr-defined]
        return text.decode() if node.lineno == node.end_lineno else ast.unparse(node)  # type: ignore[attr-defined]

    def operand(self, node: ast.AST) -> str:
        """Return an expression as it can stand anywhere: in parentheses, unless it binds closely."""
        text = self.source(node)
        return text if isinstance(node, VALUES) else f"({text})"

    @property
    def alone(self) -> bool:
        """Whether the statement is one line, and the line nothing else."""
        one = self.statement
        beside = any(other is not one and other.lineno == one.lineno for other in self.block)
        return one.lineno == one.end_lineno and not beside

    @property
    def function(self) -> ast.AST:
        """The innermost function around the statement, or the module."""
        inner = (
            node for node in self.path[-2::-1] if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        )
        return next(inner, self.path[0])

    def nodes(self) -> Iterator[ast.AST]:
        """Go through the statement's expressions; of a statement with a body, what stands before it."""
        todo: list[ast.AST] = [self.statement]
        while todo:
            node = todo.pop(0)
            yield node
            todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]

    def statements(self, name: str, *, of: str | None = None) -> list[ast.stmt]:
        """Return the statements of the block that are calls of a method."""
        return [one for one in self.block if method(one) == name and (of is None or owner(one) == of)]

    def statements_around(self, name: str, *, within: ast.AST | None = None) -> list[ast.stmt]:
        """Return the statements of the function, or of a node, that are calls of a method, in order."""
        found = [
            one
            for one in ast.walk(within or self.function)
            if isinstance(one, ast.Expr) and method(one) == name
        ]
        return sorted(found, key=lambda one: one.lineno)

    def calls(self, name: str = "") -> list[ast.Call]:
        """Return the calls in the statement, of a function or method of that name."""
        calls = [one for one in self.nodes() if isinstance(one, ast.Call)]
        return [one for one in calls if not name or ast.unparse(one.func).rpartition(".")[2] == name]

    def divisions(self) -> list[ast.BinOp]:
        """Return the divisions in the statement."""
        return [one for one in self.nodes() if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)]

    # What is changed

    def replaced(self, node: ast.AST, text: str) -> list[Edit]:
        """Return the edits that put another text in the place of an expression."""
        first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        begin, end = self.text(first).encode(), self.text(last).encode()
        line = begin[: node.col_offset].decode() + text + end[node.end_col_offset :].decode()  # type: ignore[attr-defined]
        return [Edit(first, (line,)), *(Edit(other) for other in range(first + 1, last + 1))]

    def wrapped(self, node: ast.AST, before: str, after: str) -> list[Edit]:
        """Return the edits that put text around an expression."""
        first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        at, to = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        if first == last:
            line = self.text(first).encode()
            return [
                Edit(
                    first,
                    ((line[:at] + before.encode() + line[at:to] + after.encode() + line[to:]).decode(),),
                )
            ]
        begin, end = self.text(first).encode(), self.text(last).encode()
        return [
            Edit(first, ((begin[:at] + before.encode() + begin[at:]).decode(),)),
            Edit(last, ((end[:to] + after.encode() + end[to:]).decode(),)),
        ]

    def removed(self) -> list[Edit]:
        """Return the edit that takes the statement out; none where nothing would be left of its block."""
        return [Edit(self.statement.lineno)] if self.alone and len(self.block) > 1 else []

    def added(
        self, *lines: str, behind: ast.stmt | None = None, before: ast.stmt | None = None
    ) -> list[Edit]:
        """Return the edit that puts lines beside a statement, as far to the right as it is."""
        beside = behind or before or self.statement
        place = (beside.end_lineno or beside.lineno) if before is None else before.lineno - 1
        new = tuple(self.indent(beside.lineno) + line for line in lines)
        return [Edit(place, new, instead=False)] if place else [Edit(1, (*new, self.text(1)))]

    def moved(self, *, behind: ast.stmt | None = None, before: ast.stmt | None = None) -> list[Edit]:
        """Return the edits that put this statement beside another one."""
        taken = self.removed()
        if not taken or (behind or before) is None:
            return []
        return [*taken, *self.added(self.text(self.statement.lineno).strip(), behind=behind, before=before)]


def method(statement: ast.stmt) -> str:
    """Return the name of the method or function that a statement calls."""
    value = getattr(statement, "value", None)
    function = value.func if isinstance(value, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def owner(statement: ast.stmt) -> str:
    """Return what a statement calls a method of."""
    value = getattr(statement, "value", None)
    function = value.func if isinstance(value, ast.Call) else None
    return ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
