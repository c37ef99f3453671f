"""What must hold before a backward pass and before a window: checked at the door."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from gradgate.accumulation._parameters import named_some
from gradgate.accumulation._settings import Settings
from gradgate.errors import GraphError, OwnerError, ShapeError
from gradgate.ownership import claims

if TYPE_CHECKING:
    from gradgate.accumulation._update import Update


def check_scalar(loss: Tensor) -> None:
    """Raise ShapeError unless ``loss`` is a floating scalar."""
    if not isinstance(loss, Tensor):
        raise ShapeError(
            f"backward: loss is a {type(loss).__name__}, a tensor with a graph is needed. Pass the loss itself, "
            "not loss.item(); of a tuple, its loss."
        )
    if loss.numel() != 1:
        raise ShapeError(
            f"backward: loss has shape {list(loss.shape)}, a scalar is needed. Pass loss.mean() and "
            f"count={loss.numel()}, or loss.sum() with reduction='sum'."
        )
    if not loss.is_floating_point():
        raise ShapeError(
            f"backward: loss is {loss.dtype}, a real floating type is needed. Pass loss.abs() of a complex one, "
            "and compute others in floating numbers."
        )


def check_graph(loss: Tensor) -> None:
    """Raise GraphError if nothing can be differentiated."""
    if not loss.requires_grad:
        raise GraphError(
            "backward: loss has no graph: it was made under no_grad, from .item() or .detach(), or from frozen "
            "parameters only. Compute it from the parameters with gradients enabled."
        )


def claim(update: Update, parameters: Sequence[Tensor], settings: Settings) -> None:
    """Note that an update owns parameters until it ends; raise OwnerError if another one already does."""
    mine = {id(parameter) for parameter in parameters}
    if len(mine) < len(parameters):
        times = Counter(id(parameter) for parameter in parameters)
        twice = list({id(p): p for p in parameters if times[id(p)] > 1}.values())
        raise OwnerError(
            f"update: {len(twice)} parameters are listed twice: {named_some(twice, settings)}. They would be "
            "stepped twice with one gradient. List each once, in one group of one optimizer."
        )
    for others in list(claims.values()):
        shared = [parameter for parameter in others if id(parameter) in mine]
        if shared:
            raise OwnerError(
                f"update: {len(shared)} parameters are owned by another update that is still open: "
                f"{named_some(shared, settings)}. Their gradients would mix. Leave the other block "
                "first, or give each parameter one optimizer. A window that an interrupt left open is "
                "given up by accumulator.discard()."
            )
    claims[update] = parameters


def release(update: Update) -> None:
    """Give up an update's claim."""
    claims.pop(update, None)
