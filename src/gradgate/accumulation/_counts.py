"""How many items a loss averages over: given by the caller, or read from the loss's own graph."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradgate.accumulation._items import check_items
from gradgate.autograd_graph import NotUnderstoodError, divisor_of, is_sum_of_losses, reduction_of
from gradgate.errors import CountError

Count: TypeAlias = "int | float | Tensor"
"""Items in a loss: a number, or a tensor on a device that nobody waits for."""

Reduction: TypeAlias = Literal["mean", "sum"]

# One number in, the same number out, or its negative.
_PASSING = frozenset(
    f"{name}Backward{number}"
    for name in (
        "View",
        "ReshapeAlias",
        "UnsafeView",
        "Squeeze",
        "Unsqueeze",
        "ToCopy",
        "Clone",
        "Alias",
        "Neg",
    )
    for number in "012"
)


def checked_count(loss: Tensor, count: Any, reduction: Reduction) -> Count:
    """Return ``count`` as a number, or as a detached tensor where reading it would wait for a device."""
    if type(count) is int and count > 0:
        return count
    if count is None:
        count = _read_or_ask(loss, reduction)
    if isinstance(count, Tensor):
        if count.numel() != 1:
            raise CountError(
                f"backward: count has shape {list(count.shape)}, one number is needed: the items of this "
                "micro-batch. Pass count=mask.sum() or count=y.numel()."
            )
        if count.device.type != "cpu":
            return count.detach().reshape(())
        count = count.item()
    if isinstance(count, bool) or not isinstance(count, (int, float, Real)):
        raise CountError(
            f"backward: count is {count!r}, a number or a tensor of one element is needed. Pass the items of this "
            "micro-batch: count=len(y), or count=mask.sum()."
        )
    if not 0 <= float(count) < math.inf:  # also catches nan
        raise CountError(
            f"backward: count is {count}, it must be finite and at least 0: the items that this loss was "
            "taken over. An empty micro-batch has count=0."
        )
    return count if isinstance(count, (int, float)) else float(count)


def check_reduction(loss: Tensor, reduction: Reduction) -> None:
    """Raise CountError where the loss's own graph says that it is the other one, a sum or a mean."""
    node = _mean_of(loss)
    known = "sum" if is_sum_of_losses(node) else reduction_of(node)
    if known not in (None, reduction):
        raise CountError(
            f"backward: loss is a {known} ({_kind(node)}), but reduction is {reduction!r}, so its gradient would "
            f"be {'count times too large' if known == 'sum' else 'count times too small'}. Pass "
            f"reduction={known!r}."
        )


def count_in_graph(loss: Tensor) -> Count | None:
    """Return the number of items that a mean loss was taken over, or None where its graph does not prove it.

    It is returned only if every operation between the loss and the model's last layer is known to keep the items of
    the batch apart, see ``_items.py``: then micro-batches weighed by it give the whole batch's gradient.
    """
    try:
        return _read(_mean_of(loss))
    except NotUnderstoodError:
        return None


def _read(node: Any) -> Count:
    try:
        divisor = None if node is None else divisor_of(node)
        if divisor is None:
            raise NotUnderstoodError(f"it ends in {_kind(node)}, which is not known to be a mean over items")
        check_items(node)
    except AttributeError as lost:
        raise NotUnderstoodError(
            f"torch {torch.__version__} does not show {lost.name} in its graphs"
        ) from lost
    return divisor


def _mean_of(loss: Tensor) -> Any:
    """Return the node that a loss was reduced by."""
    node: Any = loss.grad_fn
    while node is not None and node.name() in _PASSING:
        node = node.next_functions[0][0]
    return node


def divisor_in_graph(loss: Tensor) -> Count | None:
    """Return the number that a mean loss was divided by, whatever its items are.

    It is less than a count: a mean over in-batch similarities says its divisor as well. It is known for torch's own
    losses, and for a ``.mean()`` that a count is read from.
    """
    return _divisor(_mean_of(loss))


def _divisor(node: Any) -> Count | None:
    try:
        return divisor_of(node) if reduction_of(node) == "mean" else _read(node)
    except NotUnderstoodError:
        return None


def divided_by(loss: Tensor) -> float | None:
    """Return the number by which a mean loss of torch was divided right afterwards, or None.

    ``loss / 4`` on a known mean is what the usual accumulation loop writes. ``loss * 0.25`` may be the weight
    of one loss among several, and ``(a + b) / 2`` the mean of two terms: neither is reported.
    """
    node: Any = loss.grad_fn
    if node is None or node.name() != "DivBackward0":
        return None
    other = node._saved_other
    below = [following for following, _ in node.next_functions if following is not None]
    if other is None or other.numel() != 1 or other.device.type != "cpu" or len(below) != 1:
        return None
    if _divisor(below[0]) is None:
        return None
    return float(other)


def _read_or_ask(loss: Tensor, reduction: Reduction) -> Count:
    why = "a sum does not say over how many items it was taken"
    if reduction == "mean":
        try:
            return _read(_mean_of(loss))
        except NotUnderstoodError as unknown:
            why = f"the loss's graph does not prove it: {unknown}"
        divided = divided_by(loss)
        if divided is not None:
            raise CountError(
                f"backward: count is missing, and the loss is a mean that was divided by {divided:g}. The update "
                "divides once, by all counts. Pass the mean itself, without the division."
            )
    raise CountError(
        f"backward: count is missing, and {why}. Micro-batches are weighed by their counts, so a guess would give "
        "a wrong update. Pass the number of items in this loss: count=len(y) for samples, count=y.numel() for "
        "elements, count=mask.sum() for the valid ones."
    )


def _kind(node: Any) -> str:
    return "a leaf" if node is None else str(node.name())


def is_zero(count: Count) -> bool:
    """Say whether a count is known to be zero without waiting for a device."""
    return not isinstance(count, Tensor) and count == 0


def as_number(count: Count) -> int | float:
    """Return a count as a number. Waits for the device if it lies on one."""
    return count.item() if isinstance(count, Tensor) else count


def total(counts: list[Count]) -> int | float:
    """Add counts. Waits for the device at most once per device that any of them lies on."""
    known = sum(count for count in counts if not isinstance(count, Tensor))
    by_device: dict[torch.device, list[Tensor]] = {}
    for count in counts:
        if isinstance(count, Tensor):
            by_device.setdefault(count.device, []).append(count)
    for tensors in by_device.values():
        known += sum(torch.stack(tensors).tolist())
    return known
