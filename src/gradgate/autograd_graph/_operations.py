"""Reads the operations between a loss and the model's last layer that are known to keep samples apart.

Each function returns what each dimension of a node's output holds, such as samples or features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._dimensions import (
    FEATURES,
    OUTPUT,
    REPEATED,
    SAMPLES,
    Dimensions,
    GraphReader,
    Shape,
    along,
    dims_of,
)
from gradgate.autograd_graph._losses import NotUnderstoodError, reduction_of, shape_of, signed

# -- element by element ---------------------------------------------------------------------------------


def joined(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    """Read an elementwise operation on two tensors."""
    first, second = node.next_functions[:2]
    if first[0] is not None and second[0] is not None:
        known = reader.dimensions(first)
        return known if first == second else _joined(node, known, reader.dimensions(second), shape)
    known = reader.dimensions(second if first[0] is None else first)
    weighs = node.name() in ops.PRODUCTS
    if weighs and _is_number(node._saved_self if first[0] is None else node._saved_other):
        return known
    if shape == known.shape and not weighs:  # a target
        return known
    if known.from_samples:
        does = "weighs by" if weighs else f"broadcasts shape {list(known.shape)} to {list(shape)} against"
        raise NotUnderstoodError(
            f"{node.name()} {does} a tensor without a graph, which may depend on the whole micro-batch"
        )
    # The model's input meets a parameter: the model begins here.
    holds = tuple(SAMPLES if size == 1 else FEATURES for size in _aligned(known.shape, shape))
    if SAMPLES not in holds or REPEATED in known.holds:
        raise NotUnderstoodError(f"{node.name()} leaves no dimension that can hold samples")
    return Dimensions(holds, shape)


def _joined(node: Any, a: Dimensions, b: Dimensions, shape: Shape) -> Dimensions:
    if not a.from_samples:
        a, b = b, a
    if not b.from_samples:  # a parameter may widen features, and must be the same for all samples
        holds = (FEATURES,) * (len(shape) - len(a.holds)) + a.holds
        sizes = zip(holds, _aligned(b.shape, shape), strict=True)
        if REPEATED not in b.holds and all(size == 1 or held == FEATURES for held, size in sizes):
            return a._replace(holds=holds, shape=shape)
    elif a.in_order and b.in_order and len(a.holds) == len(b.holds):
        pairs = list(zip(a.holds, b.holds, a.shape, b.shape, strict=True))
        holds = tuple(first if first == second else FEATURES for first, second, _, _ in pairs)
        if all(
            first == second == FEATURES
            or (size == other and (first == second or {first, second} == {FEATURES, REPEATED}))
            for first, second, size, other in pairs
        ):
            return Dimensions(holds, shape, opaque=a.opaque or b.opaque)
    raise NotUnderstoodError(
        f"{node.name()} joins shapes {list(a.shape)} and {list(b.shape)}, and may pair different samples"
    )


def _aligned(sizes: Shape, shape: Shape) -> Shape:
    return (1,) * (len(shape) - len(sizes)) + sizes


def _is_number(factor: Tensor) -> bool:
    """Return whether a saved factor was a Python number, which takes the dtype of the other operand."""
    smaller = {torch.float64: torch.float16, torch.int64: torch.int8}.get(factor.dtype)
    if factor.dim() or smaller is None:
        return False
    return torch.result_type(factor, torch.empty((), dtype=smaller, device=factor.device)) == smaller


# -- along dimensions -----------------------------------------------------------------------------------


def over_features(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.input(node)
    return along(node, known, dims_of(node, len(known.holds)), shape)


def over_classes(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.input(node)
    return along(node, known, dims_of(node, len(known.holds)), shape, allowed=OUTPUT)


def within_samples(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    return along(node, reader.input(node), range(1, len(shape)), shape)


def sliced(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = over_features(reader, node, shape)
    if known.from_samples:
        return known
    raise NotUnderstoodError(
        f"{node.name()} takes a part of a parameter, which may be as long as the micro-batch"
    )


def gathered(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.dimensions(node.next_functions[0])
    (dim,) = dims_of(node, len(known.holds))
    if shape != (*known.shape[:dim], 1, *known.shape[dim + 1 :]):
        raise NotUnderstoodError(f"{node.name()} takes {list(shape)} instead of one element of each row")
    return along(node, known, [dim], shape)


def one_of_each(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    """Read a selection of one row per sample, ``x[torch.arange(len(x)), positions]``, as in text classifiers.

    On a device, reading the first index would synchronize, so only its shape is checked.
    """
    known = reader.input(node)
    indices = node._saved_indices
    if len(indices) == 2 and known.holds[0] == SAMPLES and None not in indices:
        count, samples = known.shape[0], indices[0]
        apart = not samples.is_cpu or samples.equal(torch.arange(count))
        if samples.shape == indices[1].shape == (count,) and apart:
            return known._replace(holds=(SAMPLES, *known.holds[2:]), shape=shape)
    raise NotUnderstoodError(f"{node.name()} is not known to keep the items of a batch apart")


# -- torch losses ---------------------------------------------------------------------------------------


def before_reduction(reader: GraphReader, node: Any) -> Dimensions:
    """Return the dimensions of a loss before its reduction. Its input is the model's output."""
    if node.name() not in ops.ELEMENT_LOSSES:
        known = reader.dimensions(node.next_functions[0])
        classes = min(1, len(known.holds) - 1)
        left = known.shape[:classes] + known.shape[classes + 1 :]
        known = along(node, known, [classes], left, allowed=OUTPUT)
    elif getattr(node, "_saved_weight", None) is not None:
        raise NotUnderstoodError(f"{node.name()} has a weight, which may depend on the whole micro-batch")
    else:
        given = next(edge for edge in node.next_functions if edge[0] is not None)
        two = len(node.next_functions) > 1
        known = joined(reader, node, shape_of(*given)) if two else reader.dimensions(given)
    holds = tuple(SAMPLES if held == OUTPUT else held for held in known.holds)
    return known._replace(holds=holds, opaque=False)


def unreduced(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    if reduction_of(node) is not None:
        raise NotUnderstoodError(f"{node.name()} is already one number for the whole micro-batch")
    return before_reduction(reader, node)._replace(shape=shape)


# -- changes of shape -----------------------------------------------------------------------------------


def viewed(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    """Read a change of shape. Split or merged dimensions may hold whatever any of them held."""
    known = reader.input(node)
    old, new = list(zip(known.holds, known.shape, strict=True)), list(shape)
    front: list[str] = []
    back: list[str] = []
    while old and new and old[0][1] == new[0]:
        front.append(old.pop(0)[0])
        del new[0]
    while old and new and old[-1][1] == new[-1]:
        back.append(old.pop()[0])
        del new[-1]
    beside = {*front[-1:], *back[-1:]}
    if SAMPLES not in beside and any(size == 1 and held != FEATURES for held, size in old):
        # Size 1 may be a batch of one sample, and a larger batch would be merged with the dimension beside it. If
        # that dimension holds samples, size 1 is one token per sample: x.view(-1, classes) merges both.
        front, back = ([*near[:-1], SAMPLES] if near[-1:] == [FEATURES] else near for near in (front, back))
    middle = _any_of([held for held, _ in old])
    return known._replace(holds=(*front, *[middle] * len(new), *reversed(back)), shape=shape)


def squeezed(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.input(node)
    gone = [dim for dim in dims_of(node, len(known.holds)) if known.shape[dim] == 1]
    if all(known.holds[dim] == FEATURES for dim in gone):
        return along(node, known, gone, shape)
    # This may be a batch of one sample. A larger batch isn't squeezed, so later dimensions would be numbered
    # differently.
    return known._replace(holds=(_any_of([SAMPLES, *known.holds]),) * len(shape), shape=shape)


def _any_of(holds: list[str]) -> str:
    return holds[0] if len({*holds}) == 1 else REPEATED if REPEATED in holds else SAMPLES


def unsqueezed(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    known, dim = reader.input(node), dims_of(node, len(shape))[0]
    return known._replace(holds=(*known.holds[:dim], FEATURES, *known.holds[dim:]), shape=shape)


def expanded(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.input(node)
    new = len(shape) - len(known.holds)
    wider = [dim for dim, size in enumerate(known.shape) if shape[new + dim] != size]
    along(node, known, wider, known.shape)
    holds = (REPEATED if dim in wider else held for dim, held in enumerate(known.holds))
    return known._replace(holds=(*[REPEATED] * new, *holds), shape=shape)


def permuted(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    order = list(range(len(shape)))
    if hasattr(node, "_saved_dims"):
        order = [signed(dim) % len(shape) for dim in node._saved_dims]
    elif len(shape) > 1:
        a, b = signed(getattr(node, "_saved_dim0", 0)), signed(getattr(node, "_saved_dim1", 1))
        order[a], order[b] = order[b], order[a]
    known = reader.input(node)
    return known._replace(holds=tuple(known.holds[dim] for dim in order), shape=shape, in_order=False)
