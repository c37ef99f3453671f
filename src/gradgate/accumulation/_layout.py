"""What the dimensions of a tensor hold: the items of a batch, or the model's own; and how operations change that.

A mean over a tensor is a mean over the items of a batch if each of its elements comes from one sample alone, and as
many of them come from each sample whatever else is in the micro-batch. The functions here keep account of this, and
raise where an operation may mix samples, leave some out, or repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

FREE = (
    "free"  # the model's own, such as features: as long in every micro-batch, and one sample along all of it
)
ITEMS = "items"  # may hold samples
OUTPUT = "output"  # all but the first of what comes from a function that cannot be looked into
REPEATED = "repeated"  # the same values, as often as the caller liked


class NotUnderstoodError(Exception):
    """An operation that is not known to keep items apart. Its text says which, and why."""


class Layout(NamedTuple):
    """What is known of a tensor's dimensions.

    Attributes:
        dims: what each holds.
        shape: their sizes.
        samples: whether anything in the tensor comes from samples; else it is made of parameters alone.
        ordered: whether samples stand in the order in which the layer put them out.
        opaque: whether it comes from a function that cannot be looked into.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    samples: bool = True
    ordered: bool = True
    opaque: bool = False


def check_free(name: str, known: Layout, dims: Iterable[int], *, also: str = FREE) -> None:
    """Check that no samples can lie along dimensions, for an operation that works along them."""
    for dim in dims:
        if known.dims[dim] not in (FREE, also):
            raise NotUnderstoodError(
                f"{name} works along dimension {dim} of shape {list(known.shape)}, which may hold samples"
            )


def without(known: Layout, gone: Sequence[int], shape: tuple[int, ...]) -> Layout:
    """Return what is left when some dimensions are taken away, or kept at size 1."""
    if len(shape) == len(known.dims):
        return known._replace(shape=shape)
    return known._replace(dims=tuple(d for i, d in enumerate(known.dims) if i not in gone), shape=shape)


# -- two tensors, element by element --------------------------------------------------------------------


def together(name: str, one: Layout, other: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of two tensors that are joined element by element, so sample by sample."""
    if not (one.samples and other.samples):
        return _with_parameter(name, *((one, other) if one.samples else (other, one)), shape)
    dims: list[str] = []
    fits = one.ordered and other.ordered and len(one.dims) == len(other.dims)
    for a, b, long, wide in zip(one.dims, other.dims, one.shape, other.shape, strict=False):
        fits &= (a == b and (a == FREE or long == wide)) or ({a, b} == {FREE, REPEATED} and long == wide)
        dims.append(a if a == b else FREE)
    if not fits:
        raise NotUnderstoodError(
            f"{name} joins shapes {list(one.shape)} and {list(other.shape)}, and may pair different samples"
        )
    return Layout(tuple(dims), shape, opaque=one.opaque or other.opaque)


def _with_parameter(name: str, known: Layout, parameter: Layout, shape: tuple[int, ...]) -> Layout:
    """A parameter may widen what is not samples, and must be the same for all of them."""
    more = len(shape) - len(known.dims)
    dims = (FREE,) * more + known.dims
    sizes = (1,) * (len(shape) - len(parameter.shape)) + parameter.shape
    if REPEATED in parameter.dims or any(
        size != 1 and held != FREE for held, size in zip(dims, sizes, strict=True)
    ):
        raise NotUnderstoodError(
            f"{name} joins a parameter of shape {list(parameter.shape)} with shape {list(known.shape)}, and may "
            "take another number of it for each sample"
        )
    return known._replace(dims=dims, shape=shape)


def with_data(name: str, known: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a tensor that is joined with one that has no graph: a target, or the model's input."""
    if shape == known.shape:
        return known
    if known.samples:
        raise NotUnderstoodError(
            f"{name} broadcasts shape {list(known.shape)} to {list(shape)} against a tensor without a graph"
        )
    return layer_of_elements(name, known, shape)


def layer_of_elements(name: str, parameter: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout where the model's input meets a parameter element by element."""
    sizes = (1,) * (len(shape) - len(parameter.shape)) + parameter.shape
    dims = tuple(ITEMS if size == 1 else FREE for size in sizes)
    if ITEMS not in dims or REPEATED in parameter.dims:
        raise NotUnderstoodError(f"{name} leaves no dimension in which samples can lie")
    return Layout(dims, shape)


# -- changes of shape -----------------------------------------------------------------------------------


def viewed(known: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a view. Dimensions that are split or merged may hold what any of them held."""
    old, new = list(zip(known.dims, known.shape, strict=True)), list(shape)
    front: list[str] = []
    back: list[str] = []
    while old and new and old[0][1] == new[0]:
        front.append(old.pop(0)[0])
        del new[0]
    while old and new and old[-1][1] == new[-1]:
        back.append(old.pop()[0])
        del new[-1]
    held = {held for held, _ in old}
    if any(size == 1 for kind, size in old if kind != FREE):
        # It may be a batch of one sample. Of more of them, what stands beside it would have been merged with it.
        front, back = ([*near[:-1], ITEMS] if near[-1:] == [FREE] else near for near in (front, back))
    kind = held.pop() if len(held) == 1 else REPEATED if REPEATED in held else ITEMS
    return known._replace(dims=(*front, *[kind] * len(new), *reversed(back)), shape=shape)


def squeezed(known: Layout, chosen: Iterable[int], shape: tuple[int, ...]) -> Layout:
    """Return the layout without those of the chosen dimensions that have size 1."""
    gone = [dim for dim in chosen if known.shape[dim] == 1]
    if all(known.dims[dim] == FREE for dim in gone):
        return without(known, gone, shape)
    # It may be a batch of one sample. Of more of them nothing is squeezed, and the dimensions after it move.
    return known._replace(dims=(REPEATED if REPEATED in known.dims else ITEMS,) * len(shape), shape=shape)


def unsqueezed(known: Layout, dim: int, held: str, shape: tuple[int, ...]) -> Layout:
    """Return the layout with a new dimension."""
    return known._replace(dims=(*known.dims[:dim], held, *known.dims[dim:]), shape=shape)


def expanded(name: str, known: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a tensor some of whose dimensions repeat their values."""
    new = len(shape) - len(known.dims)
    wider = [dim for dim, size in enumerate(known.shape) if shape[new + dim] != size]
    check_free(name, known, wider)
    dims = (REPEATED if dim in wider else held for dim, held in enumerate(known.dims))
    return known._replace(dims=(*[REPEATED] * new, *dims), shape=shape)


def permuted(known: Layout, order: Sequence[int], shape: tuple[int, ...]) -> Layout:
    """Return the layout with its dimensions in another order."""
    return known._replace(dims=tuple(known.dims[dim] for dim in order), shape=shape, ordered=False)
