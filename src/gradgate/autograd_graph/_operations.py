"""The operations between a loss and the model's last layer that are known to keep samples apart.

Each function returns what is known of what a node returned, given a reader of the graph and the shape of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph._dimensions import (
    FEATURES,
    OUTPUT,
    REPEATED,
    SAMPLES,
    Dimensions,
    Reader,
    Shape,
    along,
    dims_of,
)
from gradgate.autograd_graph._losses import ELEMENT_LOSSES, NotUnderstoodError, reduction_of, shape_of, signed

# -- element by element ---------------------------------------------------------------------------------


def same(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    (edge,) = node.next_functions
    return reader.dimensions(edge)


def of_two(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    first, second = node.next_functions[:2]
    if first[0] is not None and second[0] is not None:
        known = reader.dimensions(first)
        return known if first == second else _joined(node.name(), known, reader.dimensions(second), shape)
    known = reader.dimensions(second if first[0] is None else first)
    if shape == known.shape:
        return known
    if known.from_samples:
        raise NotUnderstoodError(
            f"{node.name()} broadcasts shape {list(known.shape)} to {list(shape)} against a tensor without a graph"
        )
    return _elementwise_layer(node.name(), known, shape)


def scaled(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    first, second = node.next_functions
    if first[0] is not None and second[0] is not None:
        return of_two(reader, node, shape)
    known = reader.dimensions(second if first[0] is None else first)
    if _is_number(node._saved_self if first[0] is None else node._saved_other):
        return known
    if known.from_samples:
        raise NotUnderstoodError(
            f"{node.name()} weighs by a tensor without a graph, which may be normalised over the micro-batch"
        )
    return _elementwise_layer(node.name(), known, shape)


def _is_number(factor: Tensor) -> bool:
    """Return whether a saved factor was a Python number: these take the dtype of the tensor they meet."""
    smaller = {torch.float64: torch.float16, torch.int64: torch.int8}.get(factor.dtype)
    if factor.dim() or smaller is None:
        return False
    return torch.result_type(factor, torch.empty((), dtype=smaller, device=factor.device)) == smaller


def _joined(name: str, a: Dimensions, b: Dimensions, shape: Shape) -> Dimensions:
    if not (a.from_samples and b.from_samples):
        return _with_parameter(name, *((a, b) if a.from_samples else (b, a)), shape)
    holds: list[str] = []
    fits = a.in_order and b.in_order and len(a.holds) == len(b.holds)
    for first, second, long, wide in zip(a.holds, b.holds, a.shape, b.shape, strict=False):
        if first == second:
            fits &= first == FEATURES or long == wide
        else:
            fits &= {first, second} == {FEATURES, REPEATED} and long == wide
        holds.append(first if first == second else FEATURES)
    if not fits:
        raise NotUnderstoodError(
            f"{name} joins shapes {list(a.shape)} and {list(b.shape)}, and may pair different samples"
        )
    return Dimensions(tuple(holds), shape, opaque=a.opaque or b.opaque)


def _with_parameter(name: str, known: Dimensions, parameter: Dimensions, shape: Shape) -> Dimensions:
    """A parameter may widen features. It must be the same for all samples."""
    holds = (FEATURES,) * (len(shape) - len(known.holds)) + known.holds
    varies = any(
        size != 1 and held != FEATURES
        for held, size in zip(holds, _aligned(parameter.shape, shape), strict=True)
    )
    if varies or REPEATED in parameter.holds:
        raise NotUnderstoodError(
            f"{name} joins a parameter of shape {list(parameter.shape)} with shape {list(known.shape)}, and may "
            "take another number of it for each sample"
        )
    return known._replace(holds=holds, shape=shape)


def _elementwise_layer(name: str, parameter: Dimensions, shape: Shape) -> Dimensions:
    """The model's input meets a parameter element by element: the model begins here."""
    holds = tuple(SAMPLES if size == 1 else FEATURES for size in _aligned(parameter.shape, shape))
    if SAMPLES not in holds or REPEATED in parameter.holds:
        raise NotUnderstoodError(f"{name} leaves no dimension that can hold samples")
    return Dimensions(holds, shape)


def _aligned(sizes: Shape, shape: Shape) -> Shape:
    return (1,) * (len(shape) - len(sizes)) + sizes


# -- along dimensions -----------------------------------------------------------------------------------


def over_features(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    known = same(reader, node, shape)
    return along(node, known, dims_of(node, len(known.holds)), shape)


def over_classes(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    known = same(reader, node, shape)
    return along(node, known, dims_of(node, len(known.holds)), shape, allowed=OUTPUT)


def within_samples(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    return along(node, same(reader, node, shape), range(1, len(shape)), shape)


def sliced(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    if (node._saved_start, node._saved_end, node._saved_step) == (0, 2**63 - 1, 1):  # [:]
        return same(reader, node, shape)
    known = over_features(reader, node, shape)
    if not known.from_samples:
        raise NotUnderstoodError(
            f"{node.name()} takes a part of a parameter, which may be as long as the micro-batch"
        )
    return known


def gathered(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    known = reader.dimensions(node.next_functions[0])
    (dim,) = dims_of(node, len(known.holds))
    if shape != (*known.shape[:dim], 1, *known.shape[dim + 1 :]):
        raise NotUnderstoodError(f"{node.name()} takes not one element of each row, but {list(shape)}")
    return along(node, known, [dim], shape)


# -- losses of torch ------------------------------------------------------------------------------------


def before_reduction(reader: Reader, node: Any) -> Dimensions:
    """Return what is known of a loss before its reduction. Its input is the model's output."""
    if node.name() not in ELEMENT_LOSSES:
        known = reader.dimensions(node.next_functions[0])
        classes = min(1, len(known.holds) - 1)
        left = known.shape[:classes] + known.shape[classes + 1 :]
        known = along(node, known, [classes], left, allowed=OUTPUT)
    elif getattr(node, "_saved_weight", None) is not None:
        raise NotUnderstoodError(f"{node.name()} has a weight, which may be normalised over the micro-batch")
    else:
        given = next(edge for edge in node.next_functions if edge[0] is not None)
        two = len(node.next_functions) > 1
        known = of_two(reader, node, shape_of(*given)) if two else reader.dimensions(given)
    holds = tuple(SAMPLES if held == OUTPUT else held for held in known.holds)
    return known._replace(holds=holds, opaque=False)


def unreduced(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    if reduction_of(node) is not None:
        raise NotUnderstoodError(f"{node.name()} below it is one number for the whole micro-batch")
    return before_reduction(reader, node)._replace(shape=shape)


# -- changes of shape -----------------------------------------------------------------------------------


def viewed(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    """Dimensions that are split or merged may hold what any of them held."""
    known = same(reader, node, shape)
    old, new = list(zip(known.holds, known.shape, strict=True)), list(shape)
    front: list[str] = []
    back: list[str] = []
    while old and new and old[0][1] == new[0]:
        front.append(old.pop(0)[0])
        del new[0]
    while old and new and old[-1][1] == new[-1]:
        back.append(old.pop()[0])
        del new[-1]
    if any(size == 1 and held != FEATURES for held, size in old):
        # Perhaps a batch of one sample. A larger batch would be merged with the dimension beside it.
        front, back = ([*near[:-1], SAMPLES] if near[-1:] == [FEATURES] else near for near in (front, back))
    middle = _any_of([held for held, _ in old])
    return known._replace(holds=(*front, *[middle] * len(new), *reversed(back)), shape=shape)


def squeezed(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    known = same(reader, node, shape)
    gone = [dim for dim in dims_of(node, len(known.holds)) if known.shape[dim] == 1]
    if all(known.holds[dim] == FEATURES for dim in gone):
        return along(node, known, gone, shape)
    # Perhaps a batch of one sample. A larger batch isn't squeezed, so later dimensions have other numbers.
    return known._replace(holds=(_any_of([SAMPLES, *known.holds]),) * len(shape), shape=shape)


def _any_of(holds: Sequence[str]) -> str:
    return holds[0] if len({*holds}) == 1 else REPEATED if REPEATED in holds else SAMPLES


def unsqueezed(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    known, dim = same(reader, node, shape), dims_of(node, len(shape))[0]
    return known._replace(holds=(*known.holds[:dim], FEATURES, *known.holds[dim:]), shape=shape)


def expanded(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    known = same(reader, node, shape)
    new = len(shape) - len(known.holds)
    wider = [dim for dim, size in enumerate(known.shape) if shape[new + dim] != size]
    along(node, known, wider, known.shape)
    holds = (REPEATED if dim in wider else held for dim, held in enumerate(known.holds))
    return known._replace(holds=(*[REPEATED] * new, *holds), shape=shape)


def permuted(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    return _reordered(
        same(reader, node, shape), [signed(dim) % len(shape) for dim in node._saved_dims], shape
    )


def transposed(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    order = list(range(len(shape)))
    if len(shape) > 1:
        a, b = signed(getattr(node, "_saved_dim0", 0)), signed(getattr(node, "_saved_dim1", 1))
        order[a], order[b] = order[b], order[a]
    return _reordered(same(reader, node, shape), order, shape)


def _reordered(known: Dimensions, order: Sequence[int], shape: Shape) -> Dimensions:
    return known._replace(holds=tuple(known.holds[dim] for dim in order), shape=shape, in_order=False)
