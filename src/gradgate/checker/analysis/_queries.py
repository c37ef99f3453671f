"""Questions that several rules ask about a run or its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run
from gradgate.events import Frame, Ids, Site

Node = TypeVar("Node", bound=ast.AST)


def find(kind: type[Node], *trees: ast.AST | None) -> list[Node]:
    """Return the nodes of one kind in syntax trees, each tree in the order of ``ast.walk``."""
    return [node for tree in trees if tree is not None for node in ast.walk(tree) if isinstance(node, kind)]


def with_line_of(site: Site, other: Site) -> Iterator[tuple[Frame, int | None]]:
    """Yield each line of a site, innermost first, and the line of another site in the same function, or None."""
    lines = {(frame.file, frame.function): frame.line for frame in other}
    return ((frame, lines.get((frame.file, frame.function))) for frame in site)


def windows_of(run: Run, optimizer: int) -> list[StepWindow]:
    """Return the windows of an optimizer's steps."""
    return [window for window in run.windows if window.optimizer == optimizer]


def held_by(run: Run, optimizer: int) -> Ids:
    """Return the parameters that an optimizer holds, in all of its groups."""
    groups = (group.parameters for made in run.made[optimizer] for group in made.groups)
    return frozenset(chain.from_iterable(groups))
