"""Read the terms of a loss: the reductions that it adds up, and the factors that scale each of them.

Autograd saves the values needed for derivatives, so the graph shows the other operand of each product or quotient,
the reduction of torch's losses, the number of valid targets, and the shape that was reduced.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import (
    Graph,
    Input,
    NotUnderstoodError,
    divisor_of,
    inputs_of,
    only_input,
    ops,
    reduced_shape,
    reduction_of,
    targets_of,
    through,
    without_smoothing,
)
from gradgate.checker.recording._node_lines import line_of
from gradgate.checker.recording._registry import Parameters
from gradgate.events import Ids, Site, Term
from gradgate.torch_compat import node_number

_MOST_TERMS = 128
_MOST_PATHS = 1 << 12  # a recurrence that uses each value twice has exponentially many paths
_MOST_WITH_REACH = 12
_MOST_MASK = 1 << 22  # larger masks are not read
_SIGNS = frozenset({ops.NEG, ops.SUB})
_ABOVE_VALUES = ops.MEANS_AND_SUMS | ops.RESHAPES
_MOST_REDUCTIONS = 3  # at most this many reductions and reshapes follow a distance

_Factors = tuple[tuple[str, float, Site], ...]


class Terms:
    """Reads the terms of one loss.

    Args:
        scaled: node number -> number of the gradient scaler that made the node, or ``~number`` if the scaler is
            disabled.
        parameters: all known parameters.

    Attributes:
        scaler: the number of the gradient scaler that scaled a term, or None.
    """

    def __init__(self, scaled: dict[int, int], parameters: Parameters) -> None:
        self._scaled = scaled
        self._parameters = parameters
        self.scaler: int | None = None

    def read(self, root: Any, *, reach: bool = False) -> tuple[Term, ...]:
        """Return the terms below a root. With ``reach``, the first few terms tell what they reach."""
        terms: dict[int, Term] = {}
        nodes: dict[int, Any] = {}
        joints: dict[int, Site] = {}  # node number -> line of the outermost sum that contains the node
        outputs: dict[int, set[int]] = defaultdict(set)  # node number -> outputs used; unbind() has several
        todo: list[tuple[Any, _Factors, bool]] = [(root, (), False)]
        for _ in range(_MOST_PATHS):
            if not todo or len(terms) >= _MOST_TERMS:
                break
            node, factors, scaled = todo.pop()
            key = node_number.use(node)
            inputs = _inputs(node)
            if key in self._scaled:
                number = self._scaled[key]
                self.scaler, scaled = max(number, ~number), True
                if number >= 0 and inputs is not None and node.name() in (ops.MUL, ops.MUL_NUMBER):
                    inputs = [Input(inputs[0].node)]
            if inputs is None:
                if key in terms and len(outputs[key]) > 1:
                    continue
                if key in terms:
                    terms[key] = _with_path(terms[key], factors, joints.get(key, ()))
                else:
                    terms[key], nodes[key] = self._term(node, key, factors, scaled), node
                continue
            line = line_of(node)
            for child, output in node.next_functions:
                if child is not None:
                    outputs[node_number.use(child)].add(output)
            for child, op, factor in inputs:
                if child is None:
                    key_of_constant = -1 - len(terms)
                    terms[key_of_constant] = Term(key_of_constant, "constant", site=line)
                    continue
                passed = factors if factor is None else (*factors, (op, float(factor), line))
                if child.name() == ops.LEAF:
                    squares = self._ids(child)
                    terms[id(child)] = Term(-1, "other", passed, site=line, squares=squares)
                    continue
                joint = joints.get(key) or (line if len(inputs) > 1 else None)
                if joint is not None:
                    joints[node_number.use(child)] = joint
                todo.append((child, passed, scaled))
        if reach and len(terms) > 1:
            graphs = {
                key: Graph(nodes[key]) for key in [key for key in terms if key in nodes][:_MOST_WITH_REACH]
            }
            times = Counter(
                node for graph in graphs.values() for node in graph.nodes if node.name() != ops.LEAF
            )
            for key, graph in graphs.items():
                reached = self._parameters.known(graph.leaves.values())
                shared = any(times[node] > 1 for node in graph.nodes)
                terms[key] = replace(terms[key], reach=reached, shared=shared)
        return tuple(terms.values())

    def _term(self, node: Any, key: int, factors: _Factors, scaled: bool) -> Term:
        name = node.name()
        plain = None if name not in ops.MEANS_AND_SUMS else "mean" if name in ops.MEANS else "sum"
        kind = plain or reduction_of(node) or "other"
        squared = node if name.startswith(("LinalgVectorNorm", "Norm")) else None
        items: float | None = None
        sizes: tuple[int, ...] = ()
        if kind != "other":
            with suppress(NotUnderstoodError):
                sizes = reduced_shape(node)
                divisor = divisor_of(node) if kind == "mean" else _items_of_sum(node)
                items = None if divisor is None else float(divisor)
        if plain == "sum":
            squared = node.next_functions[0][0]
        return Term(
            *(key, kind, factors, items, sizes, line_of(node), self._squared(squared)),
            weighted=items is not None
            and getattr(without_smoothing(node), "_saved_weight", None) is not None,
            masked=_kept(node) if plain or kind == "sum" else None,
            classes=_classes(node) if plain == "mean" else None,
            scaled=scaled,
            equal=_compares_equals(node),
        )

    def _squared(self, node: Any) -> Ids:
        """Return the parameter whose square or norm a node computes."""
        name = "" if node is None else node.name()
        if name not in ops.SQUARES:
            return frozenset()
        if name == ops.POW and float(node._saved_exponent) != 2:
            return frozenset()
        operands = {child for child, _ in node.next_functions}
        return self._ids(operands.pop()) if len(operands) == 1 else frozenset()

    def _ids(self, node: Any) -> Ids:
        """Return the number of the parameter whose gradient a leaf node accumulates."""
        return self._parameters.known([node.variable] if node is not None and node.name() == ops.LEAF else [])


def _with_path(term: Term, factors: _Factors, joined: Site) -> Term:
    """Return a term with one more path from the root."""
    first, other = replace(term, times=1.0).weight, replace(term, times=1.0, factors=factors).weight
    times = term.times + (other / first if first else 1.0)
    return replace(term, paths=term.paths + 1, times=times, joined=joined)


def _inputs(node: Any) -> list[Input] | None:
    """Return the inputs of a node between the root and the terms; None if a term begins at this node."""
    name = node.name()
    if name not in ops.TOTALS:
        inputs = inputs_of(node)
        return None if inputs is None else list(inputs)
    sizes = reduced_shape(node)
    below = node.next_functions[0][0]
    if sizes in ((), (1,)):
        return [Input(below)]
    if len(sizes) != 1 or below is None or below.name() != ops.STACK:
        return None
    stacked = [child for child, _ in below.next_functions]
    if len(stacked) != sizes[0]:
        return None
    return [Input(child, "div", float(sizes[0]) if name == ops.MEAN else None) for child in stacked]


def _compares_equals(node: Any) -> bool:
    """Return whether a term is a distance between values that are equal everywhere.

    A divergence or cross entropy compares distributions, which count as equal up to rounding.
    """
    if node.name() in ops.ERRORS:
        first, second = node._saved_self, node._saved_target
        return (
            first.shape == second.shape and 0 < first.numel() <= _MOST_MASK and bool((first == second).all())
        )
    product = _weighted_log_softmax(node, _ABOVE_VALUES | _SIGNS | ops.QUOTIENTS)
    if product is not None:
        logarithms, _, weights = product
        if logarithms.shape != weights.shape or not 0 < weights.numel() <= _MOST_MASK:
            return False
        first, second = logarithms.reshape(-1), weights.reshape(-1).to(logarithms.dtype)
        # Comparing the first 256 values is enough for most pairs.
        return all(torch.allclose(first[:n].exp(), second[:n], 1e-5, 1e-6) for n in (256, len(first)))
    for _ in range(_MOST_REDUCTIONS):
        if node is None or node.name() not in _ABOVE_VALUES:
            break
        node = node.next_functions[0][0]
    if node is None or node.name() not in (ops.POW, ops.ABS):
        return False
    below, power = node.next_functions[0][0], getattr(node, "_saved_exponent", 1)
    if below is None or below.name() != ops.SUB or isinstance(power, Tensor) or power < 1:
        return False
    return 0 < node._saved_self.numel() <= _MOST_MASK and not bool(node._saved_self.any())


def _classes(mean: Any) -> int | None:
    """Return the number of classes if ``mean`` averages ``targets * log_softmax`` over samples and classes."""
    product = _weighted_log_softmax(mean.next_functions[0][0], _SIGNS)
    return None if product is None else int(product[0].shape[product[1]])


def _weighted_log_softmax(node: Any, above: Container[str]) -> tuple[Tensor, int, Tensor] | None:
    """Return the result of a log_softmax, its dimension, and the constants that multiply the result.

    ``above`` holds the operations that may follow the product.
    """
    for _ in range(_MOST_REDUCTIONS + 1):
        if node is not None and node.name() in above:
            node = only_input(node)
    if node is None or node.name() != ops.MUL or (inner := only_input(node)) is None:
        return None
    weights = node._saved_other if node.next_functions[1][0] is None else node._saved_self
    inner = only_input(inner) if inner.name() in _SIGNS else inner
    if inner is None or inner.name() != ops.LOG_SOFTMAX or not isinstance(weights, Tensor):
        return None
    result, dim = inner._saved_result, int(inner._saved_dim)
    return result, dim if dim < result.dim() else -1, weights


def _kept(reduction: Any) -> float | None:
    """Return the fraction of the items that are neither masked as padding nor ignored; None if it is 1."""
    loss = through(without_smoothing(reduction), _ABOVE_VALUES)
    targets = None if getattr(loss, "_saved_weight", None) is not None else targets_of(reduction)
    if targets is None:
        return _padding_mask(reduction)
    kept = float(targets) / max(math.prod(reduced_shape(reduction)), 1)
    return kept if kept < 1 else None


def _padding_mask(mean: Any) -> float | None:
    """Return the fraction of ones in a padding mask, if ``mean`` averages a product with such a mask.

    In a padding mask, all rows hold ones followed by zeros, or all hold zeros followed by ones.
    """
    ones = _ones(mean)
    if ones is None or bool(ones.all()):
        return None
    steps = torch.atleast_2d(ones.squeeze()).to(torch.int8).diff(dim=-1)
    if bool((steps < 0).any()) and bool((steps > 0).any()):
        return None
    return float(ones.float().mean())


def _items_of_sum(total: Any) -> int | Tensor | None:
    """Return the number of items in a sum: targets of a loss, or ones of a 0/1 mask. None if unknown."""
    targets = targets_of(total)
    masked = targets is None and total.name() in ops.MEANS_AND_SUMS and reduced_shape(total)
    ones = _ones(total) if masked else None
    return targets if ones is None else ones.sum()


def _ones(reduction: Any) -> Tensor | None:
    """Find a 0/1 mask that multiplies the values just before their reduction. Return where the mask is 1."""
    product = through(reduction.next_functions[0][0], ops.RESHAPES)
    if product is None or product.name() != ops.MUL:
        return None
    (first, _), (second, _) = product.next_functions
    if (first is None) == (second is None):
        return None
    mask = product._saved_other if second is None else product._saved_self
    if not isinstance(mask, Tensor) or mask.dim() < 2 or not 1 < mask.numel() <= _MOST_MASK:
        return None
    ones = mask == 1
    return ones if bool((ones | (mask == 0)).all()) else None
