"""A walk through a loss's graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def nodes(loss: Tensor) -> Iterator[Any]:
    """Yield every node of a loss's graph once."""
    todo: list[Any] = [loss.grad_fn]
    seen = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo.extend(following for following, _ in node.next_functions)
        yield node
