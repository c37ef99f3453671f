"""How many items a loss averages over: given by the caller, or read from the loss's own graph."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradgate.errors import CountError

Count: TypeAlias = "int | float | Tensor"
"""Items in a loss: a number, or a tensor on a device that nobody waits for."""

Reduction: TypeAlias = Literal["mean", "sum"]

_REDUCING = ("mean", "sum", "prod", "max", "min", "norm", "var", "std")  # in the names of nodes
_DEPTH = 8  # nodes below a mean that are looked at

_REDUCTIONS: dict[int, Reduction] = {1: "mean", 2: "sum"}  # at::Reduction, as loss nodes save it

# Losses whose mean divides by the number of elements of their input. Their graph node saves both the
# reduction and the input. The list is short on purpose: what is not known here is asked for.
_ELEMENTWISE = {
    "MseLossBackward0",
    "SmoothL1LossBackward0",
    "HuberLossBackward0",
    "SoftMarginLossBackward0",
    "BinaryCrossEntropyBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
}


def checked_count(loss: Tensor, count: Any, reduction: Reduction) -> Count:
    """Return ``count`` as a number, or as a detached tensor where reading it would wait for a device."""
    if type(count) is int and count > 0:
        return count
    if count is None:
        count = count_in_graph(loss) if reduction == "mean" else None
        if count is None:
            raise CountError(_missing(loss, reduction))
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
    known = _REDUCTIONS.get(getattr(loss.grad_fn, "_saved_reduction", 0))
    if known not in (None, reduction):
        raise CountError(
            f"backward: loss is a {known} ({_kind(loss)}), but reduction is {reduction!r}, so its gradient would "
            f"be {'count times too large' if known == 'sum' else 'count times too small'}. Pass "
            f"reduction={known!r}."
        )


def count_in_graph(loss: Tensor) -> Count | None:
    """Return the divisor that torch's own mean loss used, or None where the graph does not say.

    The numbers are those that autograd itself saved for the backward pass, so they are known, not
    guessed: the valid (and weighted) targets of a cross entropy, the elements of a mean.
    """
    return None if loss.grad_fn is None else _count_in_node(loss.grad_fn)


def _count_in_node(node: Any) -> Count | None:
    kind = node.name()
    if kind == "MeanBackward0":
        return None if _mixes_samples(node) else int(node._saved_self_sym_numel)
    if _REDUCTIONS.get(getattr(node, "_saved_reduction", 0)) != "mean":
        return None
    if kind in ("NllLossBackward0", "NllLoss2DBackward0"):
        weight: Tensor = node._saved_total_weight
        if weight.is_cpu and node._saved_weight is None and weight.dtype in (torch.float32, torch.float64):
            return int(weight)  # targets that are not weighted are whole
        if weight.dtype not in (torch.float16, torch.bfloat16):
            return weight
        # A 16-bit loss saves a 16-bit total, which cannot hold 513. Unweighted targets can be counted again.
        ignored = node._saved_ignore_index
        ignored -= 2**64 if ignored >= 2**63 else 0  # saved without its sign
        return None if node._saved_weight is not None else (node._saved_target != ignored).sum()
    if kind in _ELEMENTWISE:
        return int(node._saved_self.numel())
    return None


def _mixes_samples(node: Any) -> bool:
    """Say whether what a mean was taken over is known, or likely, not to be the items of the batch any more.

    ``cross_entropy(...).mean()`` is a mean over one number, ``stack([a, b]).mean()`` over two terms, and
    ``x.mean(0).mean()`` over columns. Sums and means over other dimensions than the first leave one number
    per sample. Looks down as long as there is one way down.
    """
    for _ in range(_DEPTH):
        if not tuple(getattr(node, "_saved_self_sym_sizes", (1,))):
            return True
        below = [following for following, _ in node.next_functions if following is not None]
        if len(below) != 1:
            return node.name() in ("StackBackward0", "CatBackward0")
        node = below[0]
        kind = node.name()
        if kind in ("MeanBackward0", "SumBackward0", "StackBackward0", "CatBackward0"):
            return True
        if getattr(node, "_saved_reduction", 0) in _REDUCTIONS or _takes_away_the_first(node):
            return True
    return False


def _takes_away_the_first(node: Any) -> bool:
    """Say whether a node reduces over dimension 0, the samples' own."""
    dims = getattr(node, "_saved_dim", None)
    kind = node.name().lower()
    if dims is None or "softmax" in kind or not any(word in kind for word in _REDUCING):
        return False
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is None:
        entered = getattr(node, "_saved_self", None)
        sizes = entered.shape if isinstance(entered, Tensor) else ()
    signed = (dim - 2**64 if dim >= 2**63 else dim for dim in dims)  # saved without its sign
    return not dims or any(dim % max(len(sizes), 1) == 0 for dim in signed)


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
    if _count_in_node(below[0]) is None:
        return None
    return float(other)


def _missing(loss: Tensor, reduction: Reduction) -> str:
    if reduction == "sum":
        why = "a sum does not say over how many items it was taken"
    elif divided_by(loss) is not None:
        return (
            f"backward: count is missing, and the loss is a mean that was divided by {divided_by(loss):g}. "
            "The update divides once, by all counts. Pass the mean itself, without the division: its count "
            "is then known."
        )
    else:
        why = f"the loss ends in {_kind(loss)}, which does not say over how many items it is a mean"
    return (
        f"backward: count is missing, and {why}. Micro-batches are weighed by their counts, so one that is "
        "guessed would give a wrong update. Pass count=y.numel(), or the valid items: count=mask.sum()."
    )


def _kind(loss: Tensor) -> str:
    return "a leaf" if loss.grad_fn is None else str(loss.grad_fn.name())


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
