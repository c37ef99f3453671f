"""Finds how many items a loss, or each of its terms, averages over: from the caller's count, or from the graph."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradgate.autograd_graph import (
    NotUnderstoodError,
    SamplesMixedError,
    check_items,
    divisor_of,
    functions_of_means,
    inputs_of,
    ops,
    reduction_of,
    shape_of,
)
from gradgate.errors import CountError
from gradgate.tally import Count as Count

Reduction: TypeAlias = Literal["mean", "sum"]


@dataclass(frozen=True)
class Caller:
    """What takes losses, for messages: an update or a trainer.

    Attributes:
        name: the name of the call or package.
        count: how to pass a count.
        loop: how to get an update, if the caller is not one.
    """

    name: str
    count: str
    loop: str = ", with a gg.Accumulator in a loop of your own"


UPDATE = Caller(
    "backward",
    "Pass the number of items in this loss: count=len(y) for samples, count=y.numel() for elements, "
    "count=mask.sum() for the valid ones.",
    "",
)
STEP = replace(UPDATE, count=f"{UPDATE.count} In step, loss_fn returns the count: return loss, y.numel().")


def checked_count(loss: Tensor, count: Any, reduction: Reduction, caller: Caller = UPDATE) -> Count:
    """Return ``count`` as a number, or as a detached tensor if reading it would synchronize with a device."""
    if count is None:
        count = _read_or_ask(loss, reduction, caller)
        if type(count) is int:
            return count
    if isinstance(count, Tensor):
        if count.numel() != 1:
            raise CountError(
                f"{caller.name}: count has shape {list(count.shape)}, but it must be a single number: the number "
                "of items in this micro-batch. Pass count=mask.sum() or count=y.numel()."
            )
        if count.device.type != "cpu":
            return count.detach().reshape(())
        count = count.item()
    if isinstance(count, bool) or not isinstance(count, (int, float, Real)):
        raise CountError(
            f"{caller.name}: count is {count!r}, but it must be a number or a tensor with one element. Pass the "
            "number of items in this micro-batch: count=len(y), or count=mask.sum()."
        )
    try:
        number, shown = float(count), str(count)
    except OverflowError:
        number, shown = math.inf, "outside the range of a float"
    if not 0 <= number < math.inf:  # also catches nan
        raise CountError(
            f"{caller.name}: count is {shown}, but it must be finite and at least 0: the number of items in this "
            "loss. An empty micro-batch has count=0."
        )
    return count if isinstance(count, (int, float)) else number


def check_reduction(loss: Tensor, reduction: Reduction) -> None:
    """Raise CountError if the loss's own graph contradicts ``reduction``."""
    node = reduced(loss)
    known = reduction_of(node)
    if known not in (None, reduction):
        raise CountError(
            f"backward: loss is a {known} ({_kind(node)}), but reduction is {reduction!r}, so its gradient would "
            f"be too {'large' if known == 'sum' else 'small'} by a factor of count. Pass "
            f"reduction={known!r}."
        )


def is_sum(loss: Tensor) -> bool:
    """Return whether a loss's own graph shows that it is a sum over its items."""
    return reduction_of(reduced(loss)) == "sum"


def count_in_graph(loss: Tensor) -> Count:
    """Return the number of items in a mean loss.

    Raises:
        NotUnderstoodError: the loss's graph does not prove this number.
    """
    return _read(reduced(loss))


def divisor_in_graph(loss: Tensor) -> Count | None:
    """Return the divisor of one of torch's mean losses, or of a ``.mean()`` whose count can be read.

    It need not be a count of samples: a mean over in-batch similarities is divided by the number of similarities.
    """
    return _divisor(reduced(loss))


def divided_by(loss: Tensor) -> float | None:
    """Return the number by which a mean loss was divided right after the mean, or None.

    ``loss / 4`` on a known mean is the usual accumulation idiom. ``loss * 0.25`` returns None, because it may
    weight one of several losses. So does ``(a + b) / 2``, which may be the mean of two terms.
    """
    inputs = None if loss.grad_fn is None else inputs_of(loss.grad_fn)
    if inputs is None or inputs[0].op != "div":
        return None
    divisor = inputs[0].factor
    on_device = isinstance(divisor, Tensor) and divisor.device.type != "cpu"
    if divisor is None or on_device or _divisor(inputs[0].node) is None:
        return None
    return float(divisor)


def reduced(loss: Tensor) -> Any:
    """Return the node of the mean or sum that produced a loss, ignoring changes of sign and shape."""
    node: Any = loss.grad_fn
    if node is None or node.name() in ops.LOSSES:
        return node
    node = _within_ddp(loss)
    while node is not None:
        inputs = inputs_of(node)
        if inputs is None or len(inputs) > 1 or not inputs[0].same_size:
            break
        node = inputs[0].node
    return node


def _within_ddp(loss: Tensor) -> Any:
    """Return the node of a loss, skipping a node that DistributedDataParallel may have added on top."""
    node = loss.grad_fn
    if node is None or node.name() != ops.DDP_SINK:
        return node
    scalars = [edge for edge in node.next_functions if edge[0] and shape_of(*edge) == loss.shape]
    return scalars[0][0] if len(scalars) == 1 else node


def _divisor(node: Any) -> Count | None:
    with suppress(NotUnderstoodError):
        return divisor_of(node) if reduction_of(node) == "mean" else _read(node)
    return None


def counted_mean(node: Any) -> Count | None:
    """Return the number of items that a node averages over, or None if the graph does not prove it."""
    with suppress(NotUnderstoodError):
        return _read(node)
    return None


def _read(node: Any) -> Count:
    try:
        divisor = None if node is None else divisor_of(node)
        if divisor is None:
            raise NotUnderstoodError(
                f"the loss ends in {_kind(node)}, which is not known to be a mean over items"
            )
        check_items(node)
    except AttributeError as lost:
        raise NotUnderstoodError(
            f"the graphs of torch {torch.__version__} have no attribute {lost.name}"
        ) from lost
    return divisor


def _read_or_ask(loss: Tensor, reduction: Reduction, caller: Caller) -> Count:
    why = "a sum does not show its number of items"
    if reduction == "mean":
        try:
            return count_in_graph(loss)
        except SamplesMixedError as mixed:
            raise CountError(
                f"{caller.name}: count is missing, and this loss compares the items of a micro-batch with one "
                f"another: {mixed}. A split loses the pairs between micro-batches, so no count gives the gradient "
                f"of the whole batch. Compute the loss over the whole window{caller.loop}: "
                "update.backward_coupled(encode, micro_batches, loss_fn). If the window has a single micro-batch, "
                "pass count=1."
            ) from mixed
        except NotUnderstoodError as unknown:
            why = f"the loss's graph does not prove what it is: {unknown}"
        divided = divided_by(loss)
        if divided is not None:
            raise CountError(
                f"{caller.name}: count is missing, and the loss is a mean divided by {divided:g}. The update "
                "divides once, by the sum of all counts. Pass the mean itself, without the division."
            )
    functions = functions_in(loss)
    if functions:
        raise CountError(f"{caller.name}: count is missing, and {described_functions(functions, caller)}")
    raise CountError(
        f"{caller.name}: count is missing, and {why}. Micro-batches are weighted by their counts, so a guess "
        f"would give a wrong update. {caller.count}"
    )


def functions_in(loss: Tensor) -> list[Any]:
    """Return the nodes of nonlinear functions of means in a loss; [] if its graph is not understood."""
    try:
        return functions_of_means(loss.grad_fn)
    except (NotUnderstoodError, AttributeError):
        return []


def described_functions(functions: list[Any], caller: Caller) -> str:
    """Say why a loss with these functions of means is not exact in any split, and what to write instead."""
    of_items = f" If every function is that of a single item, pass count={len(functions)}."
    return (
        f"this loss is a nonlinear function ({functions[0].name()}) of a mean or sum over the micro-batch. The "
        "mean of such losses over micro-batches is not the loss of the whole batch, so no split gives the gradient "
        f"of the whole batch. Compute the loss from the sums of the whole window{caller.loop}: "
        "update.backward_coupled(encode, micro_batches, loss_fn). If you want the mean over micro-batches, pass "
        f"count=1.{of_items if len(functions) > 1 else ''}"
    )


def _kind(node: Any) -> str:
    return "a leaf" if node is None else str(node.name())


Counted: TypeAlias = "dict[tuple[Any, ...], tuple[float, float]]"
"""Maps each term of a loss, by position and factor, to the count passed and the number of items in its mean."""


def counted_terms(loss: Tensor, count: Count) -> Counted:
    """Return ``count`` and the number of items in the mean, for each term of a loss whose graph shows that number.

    Returns {} if comparing the two would synchronize. Only terms with equal factors are comparable, because a
    factor may depend on the micro-batch. If there are several terms, only those that the graph proves to be means
    over samples are returned: a mean over parameters is the same in every micro-batch.
    """
    if isinstance(count, Tensor) or not loss.is_cpu or not count:
        return {}
    return {term: (float(count), float(items)) for term, items in items_of_terms(loss) if float(items)}


def items_of_terms(loss: Tensor) -> list[tuple[tuple[Any, ...], Count]]:
    """Return the number of items in the mean, for each term of a loss whose graph shows that number."""
    divisor = divisor_in_graph(loss)
    if divisor is not None:
        return [((), divisor)]
    terms = [
        ((number, factor), counted_mean(node)) for number, (node, factor) in enumerate(terms_of(loss.grad_fn))
    ]
    return [(term, items) for term, items in terms if items is not None]


def terms_of(node: Any) -> list[tuple[Any, float]]:
    """Return the terms of a sum with their factors; [] if there are many, as in a long loop over small losses."""
    found: list[tuple[Any, float]] = []
    left = [(node, 1.0)]
    for _ in range(256):
        if not left:
            return found
        node, factor = left.pop()
        inputs = None if node is None else inputs_of(node)
        if inputs is None and node is not None:
            found.append((node, factor))
        for each in reversed(inputs or ()):
            try:
                number = 1.0 if each.factor is None else float(each.factor)
            except RuntimeError:  # a dispatch mode is active
                return []
            if each.node is not None and number:
                left.append((each.node, factor * number if each.op == "mul" else factor / number))
    return []
