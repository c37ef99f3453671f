"""Parameters that a graph hides from autograd: inside a node that runs a backward pass of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from gradgate.accumulation._graph import nodes
from gradgate.errors import GraphError
from gradgate.torch_compat import next_node_number

_DEPTH = 4  # of what a node keeps: a partial of a method of a module, say


class HiddenParameters:
    """Looks for them whenever a loss's graph is not as large as the one before it.

    Autograd runs only what leads to an owned parameter, so a reentrant checkpoint whose parameters nobody can see
    would be left out, silently. Walking a graph costs up to a tenth of a tiny model's backward pass. Its size costs
    nothing: autograd numbers the nodes that a thread makes.
    """

    def __init__(self) -> None:
        self._start = 0
        self._sizes: dict[tuple[str, bool], int] = {}

    def refuse(self, name: str, loss: Tensor, later: bool) -> None:
        """Raise GraphError if the graph hides parameters.

        Args:
            name: which loss.
            loss: before its backward pass.
            later: whether the window holds a micro-batch of this loss already; what ran between windows counts too.
        """
        if loss.grad_fn is None:
            return
        size = next_node_number.use() - self._start
        if self._sizes.get((name, later)) == size:
            return
        self._sizes.pop((name, later), None)
        _look(loss)
        self._sizes[name, later] = size

    def passed(self) -> None:
        """Note that a backward pass has ended: it makes nodes too."""
        self._start = next_node_number.use()


def _look(loss: Tensor) -> None:
    reached, keeping = set(), []
    for node in nodes(loss):
        if node.name() == "CheckpointFunctionBackward":
            raise GraphError(
                "backward: the graph holds a reentrant checkpoint, which hides its parameters from autograd: "
                "they would get no gradient. Write torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
            )
        if hasattr(node, "variable"):
            reached.add(id(node.variable))
        elif kept := getattr(
            node, "__dict__", None
        ):  # a Function of Python, and what it put into its context
            keeping.append((node, kept))
    for node, kept in keeping:
        for module in _modules(list(kept.values()), _DEPTH):
            for path, parameter in module.named_parameters():
                if parameter.requires_grad and id(parameter) not in reached:
                    raise GraphError(
                        f"backward: the graph holds {node.name()}, which keeps {type(module).__name__} for a "
                        f"backward pass of its own and hides its parameters ('{path}') from autograd: they would "
                        "get no gradient, or one past their owner. Use torch.utils.checkpoint.checkpoint(..., "
                        "use_reentrant=False) in its place."
                    )


def _modules(things: list[Any], depth: int) -> Iterator[nn.Module]:
    """Yield the modules that can be called through these things: methods, partials, closures, tuples of them."""
    for thing in things:
        if isinstance(thing, nn.Module):
            yield thing
        elif depth:
            yield from _modules(_within(thing), depth - 1)


def _within(thing: Any) -> list[Any]:
    if isinstance(thing, (tuple, list)):
        return list(thing)
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if not callable(thing) or isinstance(thing, type):
        return []
    inside = [getattr(thing, name, None) for name in ("__self__", "__wrapped__")]
    for cell in getattr(thing, "__closure__", None) or ():
        with suppress(ValueError):  # it is empty
            inside.append(cell.cell_contents)
    return inside
