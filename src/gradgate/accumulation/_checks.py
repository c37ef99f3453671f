"""What must hold before a backward pass and before a window: checked at the door."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim import Optimizer

from gradgate.accumulation._counts import divided_by
from gradgate.accumulation._parameters import named_some
from gradgate.errors import DividedTwiceWarning, GraphError, OwnerError, ShapeError

if TYPE_CHECKING:
    from gradgate.accumulation._update import Update


def check_scalar(loss: Tensor) -> None:
    """Raise ShapeError unless ``loss`` is a floating scalar."""
    if not isinstance(loss, Tensor):
        raise ShapeError(f"backward: loss is a {type(loss).__name__}, a tensor with a graph is needed.")
    if loss.numel() != 1:
        raise ShapeError(
            f"backward: loss has shape {list(loss.shape)}, a scalar is needed. Pass loss.mean() and "
            f"count={loss.numel()}, or loss.sum() with reduction='sum'."
        )
    if not loss.is_floating_point():
        raise ShapeError(f"backward: loss is {loss.dtype}, a real floating type is needed.")


def check_graph(loss: Tensor) -> None:
    """Raise GraphError if nothing can be differentiated."""
    if not loss.requires_grad:
        raise GraphError(
            "backward: loss has no graph: it was made under no_grad, from .item() or .detach(), or from frozen "
            "parameters only. Compute it from the parameters with gradients enabled."
        )


def warn_if_divided(loss: Tensor, micro_batches: int) -> None:
    """Warn of the ``/ N`` that an ordinary accumulation loop needs and an update does not."""
    divisor = divided_by(loss) if micro_batches > 1 else None
    if divisor is not None and math.isclose(divisor, micro_batches):
        warnings.warn(
            f"backward: loss is a mean that was divided by {micro_batches}, the number of micro-batches of this "
            "window. The update divides once, by all counts, so its gradient will be "
            f"{micro_batches} times too small. Pass the loss without the division.",
            DividedTwiceWarning,
            stacklevel=3,
        )


_claims: weakref.WeakKeyDictionary[Update, Sequence[Tensor]] = weakref.WeakKeyDictionary()


def claim(update: Update, parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    """Note that an update owns parameters until it ends; raise OwnerError if another one already does."""
    if len(optimizers) > 1:
        seen: set[int] = set()
        twice = [p for p in parameters if id(p) in seen or seen.add(id(p))]  # type: ignore[func-returns-value]
        if twice:
            raise OwnerError(
                f"update: {len(twice)} parameters belong to two optimizers of one accumulator: "
                f"{named_some(twice, optimizers)}. Both would step them with one gradient. Give each parameter "
                "one optimizer."
            )
    if _claims:
        mine = {id(parameter) for parameter in parameters}
        for others in list(_claims.values()):
            shared = [parameter for parameter in others if id(parameter) in mine]
            if shared:
                raise OwnerError(
                    f"update: {len(shared)} parameters are owned by another update that is still open: "
                    f"{named_some(shared, optimizers)}. Their gradients would mix. Leave the other block "
                    "first, or give each parameter one optimizer."
                )
    _claims[update] = parameters


def release(update: Update) -> None:
    """Give up an update's claim."""
    _claims.pop(update, None)
