"""A statement of the user's source and its context, which a rule reads before it proposes a fix."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradgate.checker.analysis._scopes import called, last_name, own_nodes
from gradgate.checker.analysis._source import FUNCTIONS, block_of, inside, loops_in, path_to, statement_at
from gradgate.events import Frame

CLOSED = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""Expressions that never need parentheses."""


@dataclass(frozen=True)
class Statement:
    """The innermost statement of a line.

    Attributes:
        node: the statement.
        block: the statements of its block, including this statement.
        path: enclosing nodes, from the module to the statement.
    """

    file: str
    node: ast.stmt
    block: Sequence[ast.stmt]
    path: Sequence[ast.AST]

    @classmethod
    def at(cls, frame: Frame) -> Statement | None:
        """Return the statement of a line, or None if the source cannot be read."""
        node, path = statement_at(frame), path_to(frame.file, frame.line)
        block = block_of(path[-2], node) if node is not None else []
        return cls(frame.file, node, block, path) if node is not None and block else None

    @property
    def line(self) -> int:
        """The statement's first line."""
        return self.node.lineno

    @property
    def value(self) -> ast.expr | None:
        """The expression that the statement assigns, adds, returns or computes."""
        return getattr(self.node, "value", None)

    @property
    def module(self) -> ast.AST:
        """The file's syntax tree."""
        return self.path[0]

    @property
    def function(self) -> ast.AST:
        """The innermost function around the statement, or the module."""
        return next((node for node in self.path[-2::-1] if isinstance(node, FUNCTIONS)), self.path[0])

    @property
    def loops(self) -> list[ast.For | ast.While]:
        """The loops around the statement in its function, innermost first."""
        return loops_in(self.path[:-1])

    def expressions(self) -> Iterator[ast.AST]:
        """Yield the nodes of the statement, or of its header if the statement has a block."""
        todo: list[ast.AST] = [self.node]
        while todo:
            node = todo.pop(0)
            yield node
            todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]

    def calls(self, name: str = "") -> list[ast.Call]:
        """Return the calls in the statement, or only the calls of a function or method with this name."""
        calls = [node for node in self.expressions() if isinstance(node, ast.Call)]
        return [call for call in calls if not name or last_name(call.func) == name]

    def divisions(self) -> list[ast.BinOp]:
        """Return the divisions in the statement's value, except in arguments of calls."""
        found: list[ast.BinOp] = []
        todo: list[ast.AST | None] = [self.value or self.node]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                found.append(node)
            if isinstance(node, (ast.BinOp, ast.Call, ast.Attribute, ast.Subscript, ast.UnaryOp)):
                todo += [getattr(node, name, None) for name in ("left", "right", "func", "value", "operand")]
        return found

    def around(self, node: ast.AST) -> list[ast.AST]:
        """Return the nodes that enclose an expression in the statement, innermost first."""
        parents = {child: parent for parent in self.expressions() for child in ast.iter_child_nodes(parent)}
        found = []
        while node in parents:
            node = parents[node]
            found.append(node)
        return found

    # Method calls in the same block

    def beside(self, name: str, *, of: str | None = None) -> list[ast.stmt]:
        """Return the statements of the same block that only call a method with this name: ``optimizer.step()``."""
        return [node for node in self.block if method(node) == name and of in (None, owner(node))]

    def later(self, name: str) -> list[ast.stmt]:
        """Return the statements of :meth:`beside` below this one."""
        return [node for node in self.beside(name) if node.lineno > self.line]

    def steps(self, *, within: ast.AST | None = None) -> list[ast.stmt]:
        """Return the optimizer steps (not scheduler steps) in the function or in a node, in order."""
        found = [node for node in own_nodes(within or self.function) if isinstance(node, ast.Expr)]
        steps = (node for node in found if method(node) == "step")
        steps = (node for node in steps if not re.search("sched|warm", owner(node)))
        return sorted(steps, key=lambda node: node.lineno)

    # Names

    def knows(self, name: str) -> bool:
        """Return whether a name is defined here: by an earlier line of the function, or by the module."""
        module, function = self.module, self.function
        if function is module:
            return name in _stored(module, self.line)
        arguments = {node.arg for node in inside(ast.arg, getattr(function, "args", None))}
        return name in arguments | _stored(function, self.line) | _stored(module, 10**9)

    def assigned_to(self, name: str) -> list[ast.expr]:
        """Return the values assigned to a name or an attribute anywhere in the file."""
        assigned = [
            node.value for node in inside(ast.Assign, self.module) if name in map(ast.unparse, node.targets)
        ]
        annotated = [node for node in inside(ast.AnnAssign, self.module) if ast.unparse(node.target) == name]
        return assigned + [node.value for node in annotated if node.value is not None]


def _stored(node: ast.AST, before: int) -> set[str]:
    names = [inner for inner in own_nodes(node) if isinstance(inner, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store) and name.lineno < before}


def method(statement: ast.AST) -> str:
    """Return the name of the method or function that a statement calls."""
    value = getattr(statement, "value", None)
    return called(value) if isinstance(value, ast.Call) else ""


def owner(statement: ast.AST) -> str:
    """Return the object whose method a statement calls, as source: "optimizer" of ``optimizer.step()``."""
    value = getattr(statement, "value", None)
    function = value.func if isinstance(value, ast.Call) else None
    return ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""


def operand(node: ast.AST) -> str:
    """Return the source of an expression, in parentheses unless it never needs them."""
    return ast.unparse(node) if isinstance(node, CLOSED) else f"({ast.unparse(node)})"
