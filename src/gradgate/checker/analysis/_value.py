"""What is known of an expression, and where it stands."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from gradgate.checker.analysis._scopes import Scope
from gradgate.events import Frame, Site


@dataclass(frozen=True)
class Value:
    """What is known of an expression."""

    live: bool = False
    cuts: tuple[Frame, ...] = ()

    def __or__(self, other: Value) -> Value:
        return Value(self.live or other.live, (*self.cuts, *other.cuts))


PLAIN = Value()
LIVE = Value(live=True)


@dataclass(frozen=True)
class Place:
    """Where an expression stands: its function, what that was given, and the frames that called it."""

    scope: Scope
    given: Mapping[str, Value]
    callers: Site = ()
    depth: int = 0
    off: bool = False  # without gradients: only the modules of the run itself count as live


def cut_at(node: ast.expr, place: Place) -> Frame:
    """Return the line of an expression that takes a gradient away."""
    return Frame(place.scope.file, node.lineno, getattr(place.scope.node, "name", "<module>"))


def is_self(node: ast.AST) -> bool:
    """Say whether an expression is the object that a method belongs to."""
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
