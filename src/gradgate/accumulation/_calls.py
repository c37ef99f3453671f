"""Reads a window's backward calls: to which micro-batch and loss each belongs, and which parameters it fills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from torch import Tensor, nn

from gradgate.accumulation._settings import Models
from gradgate.autograd_graph import Graph
from gradgate.batch_layout import looks_like_batch
from gradgate.errors import GraphError, OptionError, OwnerError, UpdateError

T = TypeVar("T")

Into: TypeAlias = "nn.Module | Tensor | Sequence[nn.Module | Tensor]"
"""Modules and parameters."""


def receivers(into: Into, owned: Sequence[Tensor], models: Models, *, sharded: bool) -> list[Tensor]:
    """Return the owned parameters that ``into`` names, in the order of the optimizers.

    Raises:
        OwnerError: a parameter is not owned, or a module holds no owned parameter.
        GraphError: a module or parameter in ``into`` is frozen.
        OptionError: ``into`` is empty, or holds anything other than modules and parameters.
        UpdateError: parameters are sharded over ranks.
    """
    if sharded:
        raise UpdateError(
            "backward: into does not work under fully_shard, which fills every parameter that the loss reaches. "
            "Stop the gradient to the others instead: gg.stop_gradient(...)."
        )
    given = [into] if isinstance(into, (nn.Module, Tensor)) else list(into)
    if not given:
        raise OptionError(
            "backward: into is empty, so no parameter would receive a gradient. Leave this call out."
        )
    ours = {id(parameter) for parameter in owned}
    chosen: set[int] = set()
    for target in given:
        if not isinstance(target, (nn.Module, Tensor)):
            raise OptionError(
                f"backward: into holds a {type(target).__name__}. Pass modules and parameters: into=[model.head]."
            )
        inside = target.parameters() if isinstance(target, nn.Module) else [target]
        parts = [parameter for parameter in inside if id(parameter) in ours]
        if not parts:
            raise OwnerError(
                f"backward: into=[...] names {models.name(target)}, which no optimizer of this accumulator owns. "
                "An update fills only parameters that it owns. Use the accumulator that owns these parameters, "
                "or add them to the optimizer."
            )
        if not any(parameter.requires_grad for parameter in parts):
            raise GraphError(
                f"backward: into=[...] names {models.name(target)}, which is frozen (requires_grad is False). "
                "Unfreeze it, or leave it out."
            )
        chosen |= {id(parameter) for parameter in parts}
    return [parameter for parameter in owned if id(parameter) in chosen]


def check_reached(loss: Tensor, parameters: Sequence[Tensor], models: Models) -> None:
    """Raise GraphError if a loss reaches none of the parameters that ``into`` names."""
    graph = Graph(loss)
    if not any(parameter in graph for parameter in parameters):
        refuse_unreached(parameters, models)


def refuse_unreached(parameters: Sequence[Tensor], models: Models) -> None:
    """Raise the GraphError for a loss that reaches none of these parameters."""
    names = ", ".join(models.name(parameter) for parameter in parameters[:3])
    raise GraphError(
        f"backward: the loss reaches none of the {len(parameters)} parameters selected by into=[...]: {names}. "
        "A tensor in between is detached, or these parameters take no part in the loss: print(gg.flow(loss_fn, "
        "model)) shows where the gradient stops."
    )


def check_window(window: Iterable[object], verb: str) -> None:
    """Raise OptionError if a single batch was passed instead of a sequence of micro-batches."""
    if isinstance(window, (list, tuple)):
        of_batches = window and isinstance(window[0], (list, tuple, dict))
        if not of_batches and looks_like_batch(window):
            raise OptionError(
                f"{verb}: a window is a sequence of micro-batches, but these tensors look like the fields of one "
                "batch: all hold the same number of samples, but they differ in dtype or number of dimensions. "
                "Pass [batch], or call accumulator.step(loss_fn, batch)."
            )
    elif isinstance(window, (Tensor, Mapping, str)):
        raise OptionError(
            f"{verb}: a window is a sequence of micro-batches, but this is a single {type(window).__name__}. "
            "Pass [batch], or split it: batch.split(32). For a stack of micro-batches, pass "
            "stack.unbind()."
        )
