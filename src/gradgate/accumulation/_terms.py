"""Reads the terms of a loss: the number of items in each mean, and sums that were divided by hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias

from torch import Tensor

from gradgate.accumulation._counts import Count, counted_mean, divisor_in_graph
from gradgate.autograd_graph import (
    RESHAPES,
    inputs_of,
    only_input,
    reduced_shape,
    reduction_of,
    through,
    without_smoothing,
)
from gradgate.errors import DividedTwiceWarning

Counted: TypeAlias = "dict[tuple[Any, ...], tuple[float, float]]"
"""For each term of a loss, by its position and factor: the count, and the number of items in its mean."""


def counted_terms(loss: Tensor, count: Count) -> Counted:
    """Return the count of a loss, and the number of items in each term's mean, as far as the graph shows them.

    Empty if comparing them would synchronize with a device. A term's factor may depend on the micro-batch, so only
    terms with equal factors are comparable. Of several terms, only those that the graph proves to be means over
    samples are returned: a mean over parameters is the same in every micro-batch.
    """
    if isinstance(count, Tensor) or not loss.is_cpu or not count:
        return {}
    divisor = divisor_in_graph(loss)
    found: list[tuple[tuple[Any, ...], Count | None]] = [((), divisor)]
    if divisor is None:
        terms = enumerate(_terms(loss.grad_fn, 1.0))
        found = [((number, factor), counted_mean(node)) for number, (node, factor) in terms]
    return {key: (float(count), float(items)) for key, items in found if items is not None and float(items)}


def _terms(node: Any, factor: float) -> Iterator[tuple[Any, float]]:
    """Yield the terms of a sum, with their factors."""
    inputs = None if node is None else inputs_of(node)
    for each in inputs or ():
        number = 1.0 if each.factor is None else float(each.factor)
        if each.node is not None and number:
            yield from _terms(each.node, factor * number if each.op == "mul" else factor / number)
    if inputs is None and node is not None:
        yield node, factor


def warn_if_spread(loss: Tensor, micro_batches: int) -> None:
    """Warn about a sum of torch's losses that was divided by more than its own items, such as those of the window.

    Trainers of transformers pass this number to models as ``num_items_in_batch``.
    """
    found = _spread(loss) if micro_batches > 1 else None
    if found is not None:
        items, divisor = found
        warnings.warn(
            f"backward: loss is a sum over {items} items divided by {divisor:.10g}, so it is no mean over them. "
            "The update divides once, by the sum of all counts, so the gradient will be too small. Pass the sum "
            "without the division: update.backward(loss, count=n, reduction='sum').",
            DividedTwiceWarning,
            stacklevel=4,
        )


def _spread(loss: Tensor) -> tuple[int, float] | None:
    """Return the size and the divisor of a sum of torch's losses that was divided by more than its own items."""
    node = through(loss.grad_fn, RESHAPES)
    inputs = None if node is None else inputs_of(node)
    if not loss.is_cpu or inputs is None or inputs[0].op != "div" or inputs[0].factor is None:
        return None
    summed = without_smoothing(inputs[0].node)
    if reduction_of(summed) != "sum":
        return None
    each = only_input(summed) if summed.name() == "SumBackward0" else summed
    if getattr(each, "_saved_weight", None) is not None:
        return None  # the weights of the items may add up to more than their number
    items, divisor = math.prod(reduced_shape(summed)), float(inputs[0].factor)
    return (items, divisor) if divisor > items else None
