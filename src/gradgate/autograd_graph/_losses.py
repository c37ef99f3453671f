"""Decodes the nodes near the root of a graph: how a loss was reduced, and from which numbers it was computed.

Autograd saves these facts for the backward pass, under the documented names ``grad_fn._saved_...``.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._inputs import inputs, through
from gradgate.torch_compat import node_shape

_REDUCTIONS: dict[int, Literal["mean", "sum"]] = {1: "mean", 2: "sum"}  # at::Reduction, as loss nodes save it

_OVER_CLASSES = (
    ops.MUL_NUMBER,
    ops.DIV,
    ops.SUM,
    ops.MASKED_FILL,
    ops.NEG,
    ops.SUM_OVER_DIMS,
    ops.MUL,
    ops.LOG_SOFTMAX,
)
"""The nodes of the second part of a cross entropy with label smoothing."""

_OPTIONAL = ops.PRODUCTS
"""Those that are left out of a sum, and without class weights."""

WEIGHT_ROUNDING = 1e-5
"""Relative rounding of a sum of class weights, which a loss saves in float32 as the divisor of its mean."""

_ARITHMETIC = (
    ops.RESHAPES | ops.SUMS | ops.SUMS_WITH_NUMBERS | ops.PRODUCTS | ops.NEGATIONS | {ops.MUL_NUMBER}
)


class NotUnderstoodError(Exception):
    """The graph doesn't prove the requested property. The text names the node and the reason."""


class SamplesMixedError(NotUnderstoodError):
    """A product or distance between all samples of a micro-batch."""


# -- label smoothing ------------------------------------------------------------------------------------


class _Smoothed(NamedTuple):
    """A cross entropy of class indices with label smoothing e.

    It is (1 - e) times the loss of the target class, plus e times the mean loss over all classes.

    Attributes:
        loss: the node of the first part's loss.
        ignored: the mask of the targets that the second part ignores.
        divisor: the number by which the second part was divided, or None for a sum.
    """

    loss: Any
    ignored: Tensor
    divisor: Tensor | None

    def total(self) -> int | Tensor | None:
        """Return the common divisor of both parts. If their divisors differ, return None, or nan on a device."""
        total, target = _targets(self.loss), self.loss._saved_target
        if total is None or self.divisor is None or self.ignored.numel() != target.numel():
            return None
        same = (self.ignored.flatten() == (target == signed(self.loss._saved_ignore_index)).flatten()).all()
        weighted = self.loss._saved_weight is not None
        same &= (self.divisor - total).abs() <= (WEIGHT_ROUNDING * total if weighted else 0)
        if isinstance(total, Tensor) and not same.is_cpu:
            return torch.where(same, total, math.nan)
        return total if same else None


def _smoothed(node: Any) -> _Smoothed | None:
    """Return the parts of ``cross_entropy(..., label_smoothing=)`` with a mean or sum; None for other nodes."""
    if node is None or node.name() != ops.ADD:
        return None
    (first, _), (second, _) = node.next_functions
    loss = None if first is None or first.name() != ops.MUL_NUMBER else first.next_functions[0][0]
    over_classes = _chain(second, *_OVER_CLASSES)
    if not over_classes or loss is None or loss.name() not in ops.CLASS_LOSSES:
        return None
    classes = int(over_classes[ops.SUM_OVER_DIMS]._saved_self_sym_sizes[:2][-1])
    weights = float(first._saved_other), float(over_classes[ops.MUL_NUMBER]._saved_other)
    division, product = over_classes.get(ops.DIV), over_classes.get(ops.MUL)
    if (
        through(loss.next_functions[0][0], ops.RESHAPES) is not over_classes[ops.LOG_SOFTMAX]
        or not math.isclose(weights[0] + weights[1] * classes, 1)
        or reduction_of(loss) != ("sum" if division is None else "mean")
        or not _same_values(None if product is None else product._saved_other, loss._saved_weight)
    ):
        return None
    return _Smoothed(
        loss,
        over_classes[ops.MASKED_FILL]._saved_mask,
        None if division is None else division._saved_other,
    )


def _chain(node: Any, *names: str) -> dict[str, Any]:
    """Return the nodes of a chain, each by its name, or {} if one is missing that isn't optional."""
    chain: dict[str, Any] = {}
    for name in names:
        if node is not None and node.name() == name:
            chain[name] = node
            node = next(iter(inputs(node)), None)
        elif name not in _OPTIONAL:
            return {}
    return chain


def _same_values(tensor: Tensor | None, other: Tensor | None) -> bool:
    if tensor is None or other is None:
        return tensor is other
    return tensor.data_ptr() == other.data_ptr() and tensor.numel() == other.numel()


def without_smoothing(node: Any) -> Any:
    """Return the unsmoothed loss in a cross entropy with label smoothing; return any other node unchanged."""
    smoothed = _smoothed(node)
    return node if smoothed is None else smoothed.loss


# -- reductions -----------------------------------------------------------------------------------------


def reduction_of(node: Any) -> Literal["mean", "sum"] | None:
    """Return how a torch loss was reduced, or None for an unreduced loss and for any other node.

    The sum of an unreduced loss counts as a loss with ``reduction="sum"``.
    """
    node = without_smoothing(node)
    reduction = _REDUCTIONS.get(getattr(node, "_saved_reduction", 0))
    if reduction is None and node is not None and node.name() == ops.SUM:
        below = node.next_functions[0][0]
        if below is not None and below.name() in ops.LOSSES and reduction_of(below) is None:
            return "sum"
    return reduction


def divisor_of(node: Any) -> int | float | Tensor | None:
    """Return the divisor of a mean, or None if the node does not show it.

    The node's output must be a single number. :func:`check_items` tells whether the summands are the items of a
    batch. A divisor on a device is returned as a tensor, without synchronizing.
    """
    kind = node.name()
    if kind in ops.CLASS_LOSSES:  # first, because it is the usual case and read in each micro-batch
        return _targets(node) if _REDUCTIONS.get(node._saved_reduction) == "mean" else None
    smoothed = _smoothed(node)
    if smoothed is not None:
        return smoothed.total()
    if kind in ops.MEANS:
        return int(node._saved_self_sym_numel)
    if kind not in ops.LOSSES or reduction_of(node) != "mean":
        return None
    shape = _input_shape(node)
    if kind in ops.ELEMENT_LOSSES:
        return math.prod(shape)
    return shape[0] if len(shape) == 2 else None


def reduced_shape(node: Any) -> tuple[int, ...]:
    """Return the shape that a mean, sum or torch loss reduced; for class losses, the shape of the targets."""
    node = without_smoothing(node)
    kind = node.name()
    if kind in ops.CLASS_LOSSES:
        return tuple(node._saved_target.shape)
    if kind in ops.LOSSES:
        return _input_shape(node)
    return tuple(int(size) for size in getattr(node, "_saved_self_sym_sizes", ()))


def shape_of(node: Any, output: int = 0) -> tuple[int, ...]:
    """Return the shape of a node's output in the forward pass."""
    if node_shape.lost:
        raise NotUnderstoodError(node_shape.loss)
    return node_shape(node, output)


def signed(dim: int) -> int:
    """Return a dimension with its sign. Autograd saves -1 as an unsigned number."""
    return dim - 2**64 if dim >= 2**63 else dim


def _input_shape(node: Any) -> tuple[int, ...]:
    return shape_of(*next(edge for edge in node.next_functions if edge[0] is not None))


def targets_of(node: Any) -> int | Tensor | None:
    """Return the number of targets in a sum, or plain mean, of class losses, or the sum of their weights.

    The result is None for any other sum or mean.
    """
    loss = without_smoothing(node)
    if loss.name() in ops.TOTALS:
        loss = through(loss.next_functions[0][0], ops.RESHAPES)
    if loss is None or loss.name() not in ops.CLASS_LOSSES:
        return None
    unreduced = reduction_of(loss) is None
    return (
        None if unreduced and math.prod(reduced_shape(node)) != loss._saved_target.numel() else _targets(loss)
    )


def _targets(node: Any) -> int | Tensor | None:
    total: Tensor = node._saved_total_weight
    weighted = node._saved_weight is not None
    if node._saved_reduction not in _REDUCTIONS or total.dtype in (torch.float16, torch.bfloat16):
        # An unreduced loss saves no total, and a 16-bit total cannot hold 513. Count unweighted targets instead.
        return None if weighted else (node._saved_target != signed(node._saved_ignore_index)).sum()
    return int(total) if total.is_cpu and not weighted else total  # unweighted, each target counts 1


# -- arithmetic of single numbers -----------------------------------------------------------------------


class Input(NamedTuple):
    """An input of a scalar node, with the factor applied to it.

    Attributes:
        node: the node of the input's graph, or None if it has no graph.
        op: whether the factor multiplied or divided the input.
        factor: None if there was none. A tensor, perhaps on a device, if the script used one.
    """

    node: Any
    op: Literal["mul", "div"] = "mul"
    factor: float | Tensor | None = None

    @property
    def same_size(self) -> bool:
        """Whether the input was unscaled or only negated."""
        return self.factor is None or (not isinstance(self.factor, Tensor) and self.factor == -1.0)


def inputs_of(node: Any) -> tuple[Input, ...] | None:
    """Return the inputs of a sum, difference, product with a constant, or change of shape, with their factors.

    The node's output must be a single number. For any other node, the result is None: a loss or one of its terms
    begins there.
    """
    name = node.name()
    if name not in _ARITHMETIC or _smoothed(node) is not None:
        return None
    first, second = [*(child for child, _ in node.next_functions), None][:2]
    if name in ops.RESHAPES:
        selected = any(int(size) != 1 for size in getattr(node, "_saved_self_sym_sizes", ()))
        return None if selected else (Input(first),)
    if name in ops.NEGATIONS:
        return (Input(first, "mul", -1.0),)
    if name in ops.SUMS_WITH_NUMBERS:
        return (Input(first),)
    if name == ops.MUL_NUMBER:
        return (Input(first, "mul", float(node._saved_other)),)
    if name in ops.SUMS:
        factor = float(node._saved_alpha) * (1.0 if name == ops.ADD else -1.0)
        return (Input(first), Input(second, "mul", None if factor == 1 else factor))
    divided = name == ops.DIV
    if (first is None) == (second is None) or (divided and first is None):
        return None  # a learned weight
    other = node._saved_other if first is not None else node._saved_self
    if not isinstance(other, Tensor) or other.numel() != 1 or other.is_complex():
        return None
    return (Input(second if first is None else first, "div" if divided else "mul", other),)
