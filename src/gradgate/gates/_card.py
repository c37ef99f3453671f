"""A flow as a table, for notebooks."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from gradgate.gates._tree import Branch, fate_of, tree_of
from gradgate.notebook_tables import NOTHING, USED, WASTED, Mark, card

if TYPE_CHECKING:
    from gradgate.gates._flow import Flow


def to_html(flow: Flow) -> str:
    """Return one row for each part of the model whose parameters have the same fate."""
    rows = [
        (part.path or flow.model, str(len(part.parameters)), f"{_numbers(part):,}", _mark(part))
        for part in tree_of(flow).folded()
    ]
    said = f"gradient of the loss: {len(flow.reached)} of {len(flow.parameters)} parameters"
    return card(flow.model, said, rows, head=("part", "parameters", "numbers", "what becomes of it"))


def _numbers(part: Branch) -> int:
    return sum(prod(one.shape) for one in part.parameters)


def _mark(part: Branch) -> Mark:
    one = part.parameters[0]
    unused = any(stop.unstepped for stop in one.stops)
    return Mark(fate_of(part), NOTHING if not one.reached else WASTED if unused else USED)
