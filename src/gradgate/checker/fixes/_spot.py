"""The place of a mistake in the user's source, and how lines there are rewritten and moved."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradgate.checker.analysis._source import loops_around, path_to
from gradgate.checker.fixes._edit import Edit
from gradgate.checker.rules._finding import Finding
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
        return self.statement.lineno == self.statement.end_lineno and self.has_its_lines(self.statement)

    def has_its_lines(self, one: ast.stmt) -> bool:
        """Say whether nothing but a comment stands beside a statement."""
        last = one.end_lineno or one.lineno
        before = self.text(one.lineno).encode()[: one.col_offset]
        behind = self.text(last).encode()[one.end_col_offset :].strip()
        return not before.strip() and (not behind or behind.startswith(b"#"))

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
            for one in of_its_own(within or self.function)
            if isinstance(one, ast.Expr) and method(one) == name
        ]
        return sorted(found, key=lambda one: one.lineno)

    def steps(self, *, within: ast.AST | None = None) -> list[ast.stmt]:
        """Return the steps of optimizers, not of schedules, in the function or in a node."""
        return [
            one
            for one in self.statements_around("step", within=within)
            if not re.search("sched|warm", owner(one))
        ]

    def calls(self, name: str = "") -> list[ast.Call]:
        """Return the calls in the statement, of a function or method of that name."""
        calls = [one for one in self.nodes() if isinstance(one, ast.Call)]
        return [one for one in calls if not name or ast.unparse(one.func).rpartition(".")[2] == name]

    def divisions(self) -> list[ast.BinOp]:
        """Return the divisions of what the statement computes, not those within what a call is given."""
        found: list[ast.BinOp] = []
        todo: list[ast.AST] = [getattr(self.statement, "value", None) or self.statement]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.BinOp):
                found += [node] if isinstance(node.op, ast.Div) else []
                todo += [node.left, node.right]
            elif isinstance(node, ast.Call):
                todo.append(node.func)
            elif isinstance(node, (ast.Attribute, ast.UnaryOp, ast.Subscript)):
                todo.append(node.operand if isinstance(node, ast.UnaryOp) else node.value)
        return found

    def inside(self, node: ast.AST) -> list[ast.AST]:
        """Return what holds an expression in the statement, the innermost first."""
        holders = {child: one for one in self.nodes() for child in ast.iter_child_nodes(one)}
        found = []
        while node in holders:
            node = holders[node]
            found.append(node)
        return found

    def knows(self, name: str) -> bool:
        """Say whether a name is given something in the function before the statement, or in the module."""
        module, function = self.path[0], self.function
        if function is not module:
            arguments = [one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)]  # type: ignore[attr-defined]
            if name in arguments or name in _stored(function, self.statement.lineno):
                return True
        return name in _stored(module, self.statement.lineno if function is module else 10**9)

    def made_of(self, name: str) -> list[ast.expr]:
        """Return what a name, or an attribute, is given in the file."""
        return [
            one.value
            for one in ast.walk(self.path[0])
            if isinstance(one, ast.Assign) and any(ast.unparse(target) == name for target in one.targets)
        ]

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

    def operator(self, left: ast.AST, right: ast.AST, old: str, new: str) -> list[Edit]:
        """Return the edit that puts another operator between two expressions, which keep their parentheses."""
        if left.end_lineno != right.lineno:  # type: ignore[attr-defined]
            return []
        text = self.text(right.lineno).encode()  # type: ignore[attr-defined]
        at = text.find(old.encode(), left.end_col_offset)  # type: ignore[attr-defined]
        if not 0 <= at < right.col_offset:  # type: ignore[attr-defined]
            return []
        return [Edit(right.lineno, ((text[:at] + new.encode() + text[at + len(old) :]).decode(),))]  # type: ignore[attr-defined]

    def removed(self) -> list[Edit]:
        """Return the edit that takes the statement out; none where nothing would be left of its block."""
        return [Edit(self.statement.lineno)] if self.alone and len(self.block) > 1 else []

    def added(
        self, *lines: str, behind: ast.stmt | None = None, before: ast.stmt | None = None
    ) -> list[Edit]:
        """Return the edit that puts lines beside a statement, as far to the right as it is."""
        beside = behind or before or self.statement
        if not self.has_its_lines(beside):
            return []
        place = (beside.end_lineno or beside.lineno) if before is None else before.lineno - 1
        new = tuple(self.indent(beside.lineno) + line for line in lines)
        return [Edit(place, new, instead=False)] if place else [Edit(1, (*new, self.text(1)))]

    def moved(self, *, behind: ast.stmt | None = None, before: ast.stmt | None = None) -> list[Edit]:
        """Return the edits that put this statement beside another one."""
        beside = behind or before
        taken = self.removed()
        if not taken or beside is None or self._meets(beside):
            return []
        put = self.added(self.text(self.statement.lineno).strip(), behind=behind, before=before)
        return [*taken, *put] if put else []

    def _meets(self, beside: ast.stmt) -> bool:
        """Say whether something on the way needs what this statement gives, or gives what it needs."""
        low, high = sorted((self.statement.lineno, beside.lineno))
        between = [
            node
            for node in of_its_own(self.function)
            if isinstance(node, ast.Name)
            and low <= node.lineno <= high
            and node.lineno != self.statement.lineno
        ]
        given = {
            one.id for one in self.nodes() if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        needed = {
            one.id for one in self.nodes() if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
        }
        return any(one.id in (needed if isinstance(one.ctx, ast.Store) else given) for one in between)


def of_its_own(node: ast.AST) -> Iterator[ast.AST]:
    """Go through a node's tree, but not into functions and classes in it, which are another place."""
    todo: list[ast.AST] = list(ast.iter_child_nodes(node))
    while todo:
        one = todo.pop(0)
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            todo += ast.iter_child_nodes(one)


def _stored(node: ast.AST, before: int) -> set[str]:
    return {
        one.id
        for one in of_its_own(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.lineno < before
    }


def root_of(node: ast.AST) -> str:
    """Return the name that an expression of attributes and items begins with."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


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
