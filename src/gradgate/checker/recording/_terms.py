"""The scalar head of a loss: which reductions it adds up, and by what each is multiplied on the way to the root.

The graph itself carries all of it, as autograd saves what it needs for the derivative: the other operand of a
product or quotient, the reduction of torch's losses, the number of valid targets, the shape that was reduced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradgate.checker.recording._node_lines import line_of
from gradgate.events import Ids, Site, Term
from gradgate.torch_compat import node_number

_MOST_TERMS = 128
_MOST_MASK = 1 << 22  # elements of a mask that is looked at

_REDUCTIONS = {1: "mean", 2: "sum"}  # at::Reduction, as torch's loss nodes save it

# One number in, the same number out.
_PASSING = frozenset(
    f"{name}Backward0"
    for name in (
        *(
            "View",
            "Reshape",
            "ReshapeAlias",
            "UnsafeView",
            "Squeeze",
            "Unsqueeze",
            "Expand",
            "Clone",
            "ToCopy",
        ),
        *("Alias", "Contiguous", "Select", "Copy", "Identity"),
    )
) | {"SqueezeBackward1", "CopyBackwards", "AliasBackward0"}


class Head:
    """Reads the terms of one loss.

    ``scaled`` maps the key of a node to the gradient scaler that made it, or to ``~scaler`` of one switched off.
    ``parameter`` gives the number of the parameter that a leaf is, or None.
    """

    def __init__(self, scaled: dict[int, int], parameter: Any) -> None:
        self._scaled = scaled
        self._parameter = parameter
        self.scaler: int | None = None

    def terms(self, root: Any) -> tuple[Term, ...]:
        """Return the terms below a root node."""
        found: dict[int, Term] = {}
        todo: list[tuple[Any, tuple[tuple[str, float, Site], ...], bool]] = [(root, (), False)]
        joints: dict[int, Site] = {}  # the sum nearest to the root on the way to a node
        constants = 0
        while todo and len(found) < _MOST_TERMS:
            node, factors, scaled = todo.pop()
            key = node_number.use(node)
            name = node.name()
            children = node.next_functions
            passed = False
            if key in self._scaled:
                number = self._scaled[key]
                self.scaler, scaled = max(number, ~number), True
                passed = number >= 0 and name.startswith("Mul")
            if passed:
                todo.append((children[0][0] or children[1][0], factors, scaled))
                continue
            below = self._through(node, name, children)
            if below is None:
                term = found.get(key)
                if term is not None:
                    found[key] = replace(term, paths=term.paths + 1, joined=joints.get(key, ()))
                else:
                    found[key] = self._term(node, name, key, factors, scaled)
                continue
            for child, factor in below:
                if child is None:
                    constants += 1
                    found[-constants] = Term(-constants, "constant", name, site=line_of(node))
                elif child.name() != "torch::autograd::AccumulateGrad":
                    if len(below) > 1:
                        joints[node_number.use(child)] = joints.get(key) or line_of(node)
                    elif key in joints:
                        joints[node_number.use(child)] = joints[key]
                    todo.append((child, (*factors, *([factor] if factor else [])), scaled))
                else:
                    number = self._parameter(child.variable)
                    squares = frozenset(() if number is None else (number,))
                    found[id(child)] = Term(-1, "other", "leaf", factors, site=line_of(node), squares=squares)
        return tuple(found.values())

    def _through(self, node: Any, name: str, children: Any) -> list[tuple[Any, Any]] | None:
        """Return what a node of the head passes on to, with the factor, or None where a term begins."""
        if name == "NegBackward0":
            return [(children[0][0], ("mul", -1.0, line_of(node)))]
        if name in _PASSING and len(children) == 1:
            return [(children[0][0], None)] if _is_scalar(node) else None
        if name == "MulBackward1":
            return [(children[0][0], ("mul", float(node._saved_other), line_of(node)))]
        if name in ("MulBackward0", "DivBackward0"):
            return _factor(node, name, children)
        if name in ("AddBackward0", "SubBackward0", "AddBackward1", "SubBackward1", "RsubBackward1"):
            alpha = float(getattr(node, "_saved_alpha", 1))
            signs = (alpha if name.startswith("Add") else -alpha) if len(children) == 2 else 1.0
            first = (children[0][0], ("mul", -1.0, line_of(node)) if name.startswith("Rsub") else None)
            if len(children) == 1:
                return [first]
            return [first, (children[1][0], ("mul", signs, line_of(node)) if signs != 1 else None)]
        if name in ("MeanBackward0", "SumBackward0"):
            sizes = tuple(int(size) for size in node._saved_self_sym_sizes)
            if not sizes or sizes == (1,):
                return [(children[0][0], None)]
            stack = children[0][0]
            if (
                len(sizes) == 1
                and stack is not None
                and stack.name() == "StackBackward0"
                and len(stack.next_functions) == sizes[0]
            ):
                factor = ("div", float(sizes[0]), line_of(node)) if name.startswith("Mean") else None
                return [(child, factor) for child, _ in stack.next_functions]
        return None

    def _term(self, node: Any, name: str, key: int, factors: Any, scaled: bool) -> Term:
        kind, items = "other", None
        sizes: tuple[int, ...] = ()
        masked = classes = None
        squares: Ids = frozenset()
        if name in ("MeanBackward0", "SumBackward0"):
            sizes = tuple(int(size) for size in node._saved_self_sym_sizes)
            kind = "mean" if name.startswith("Mean") else "sum"
            items = float(node._saved_self_sym_numel) if kind == "mean" else None
            masked = _padding_mask(node) if kind == "mean" else None
            classes = _classes(node) if kind == "mean" else None
            squares = self._squares(node.next_functions[0][0]) if kind == "sum" else squares
        elif name in ("LinalgVectorNormBackward0", "NormBackward0", "NormBackward1", "NormBackward2"):
            squares = self._squares(node)
        else:
            kind = _REDUCTIONS.get(getattr(node, "_saved_reduction", 0), "other")
            if kind != "other":
                items, sizes = _items(node, name)
                items = items if kind == "mean" else None
        return Term(
            key, kind, name, factors, items, sizes, line_of(node), squares, masked, classes, scaled=scaled
        )  # fmt: skip

    def _squares(self, node: Any) -> Ids:
        """Return the parameter whose square (or norm) a node is taken of."""
        if node is None:
            return frozenset()
        name = node.name()
        if name == "PowBackward0" and float(node._saved_exponent) != 2:
            return frozenset()
        if not name.startswith(("Pow", "Mul", "LinalgVectorNorm", "Norm", "Square")):
            return frozenset()
        leaves = {child for child, _ in node.next_functions}
        if len(leaves) != 1:
            return frozenset()
        (leaf,) = leaves
        if leaf is None or leaf.name() != "torch::autograd::AccumulateGrad":
            return frozenset()
        number = self._parameter(leaf.variable)
        return frozenset(() if number is None else (number,))


def _is_scalar(node: Any) -> bool:
    """Say whether what a reshaping node was given holds one number, as far as it knows."""
    sizes = getattr(node, "_saved_self_sym_sizes", ())
    return all(int(size) == 1 for size in sizes)


def _factor(node: Any, name: str, children: Any) -> list[tuple[Any, Any]] | None:
    """Return the differentiable operand of a product or quotient of a scalar, and what it is multiplied by."""
    first, second = children[0][0], children[1][0]
    if first is not None and second is not None:
        return None  # both learn: a learned weight
    if first is None and name == "DivBackward0":
        return None
    other = node._saved_other if first is not None else node._saved_self
    if not isinstance(other, Tensor) or other.numel() != 1 or other.is_complex():
        return None
    operand = first if first is not None else second
    return [(operand, ("div" if name.startswith("Div") else "mul", float(other), line_of(node)))]


def _items(node: Any, name: str) -> tuple[float | None, tuple[int, ...]]:
    """Return what one of torch's loss nodes averages over, and the shape of its input."""
    if name in ("NllLossBackward0", "NllLoss2DBackward0"):
        target = node._saved_target
        ignored = node._saved_ignore_index
        ignored -= 2**64 if ignored >= 2**63 else 0  # saved without its sign
        if node._saved_weight is not None:
            return float(node._saved_total_weight), tuple(target.shape)
        return float((target != ignored).sum()), tuple(target.shape)
    saved = getattr(node, "_saved_self", None)
    return (float(saved.numel()), tuple(saved.shape)) if isinstance(saved, Tensor) else (None, ())


def _classes(mean: Any) -> int | None:
    """Return the number of classes where a mean over samples and classes is taken of targets * log_softmax."""
    node = mean.next_functions[0][0]
    while node is not None and node.name() in ("NegBackward0", "SubBackward0"):
        node = next((child for child, _ in node.next_functions if child is not None), None)
    if node is None or node.name() != "MulBackward0":
        return None
    below = [child for child, _ in node.next_functions if child is not None]
    if len(below) != 1 or below[0].name() != "LogSoftmaxBackward0":
        return None
    result = below[0]._saved_result
    return int(result.shape[int(below[0]._saved_dim) if below[0]._saved_dim < result.dim() else -1])


def _padding_mask(mean: Any) -> float | None:
    """Return the share of ones where a mean is taken of a product with a 0/1 mask that marks padding.

    Padding stands at one end of the last dimension: in each row ones, then zeros, or the other way round.
    """
    product = mean.next_functions[0][0]
    while product is not None and product.name() in _PASSING and len(product.next_functions) == 1:
        product = product.next_functions[0][0]
    if product is None or product.name() != "MulBackward0":
        return None
    first, second = product.next_functions[0][0], product.next_functions[1][0]
    if (first is None) == (second is None):
        return None
    mask = product._saved_other if second is None else product._saved_self
    if not isinstance(mask, Tensor) or mask.dim() < 2 or not 1 < mask.numel() <= _MOST_MASK:
        return None
    ones = mask == 1
    if not bool((ones | (mask == 0)).all()) or bool(ones.all()):
        return None
    rows = torch.atleast_2d(ones.squeeze()).to(torch.int8)
    steps = rows.diff(dim=-1)
    if not (bool((steps <= 0).all()) or bool((steps >= 0).all())):
        return None
    return float(ones.float().mean())
