"""What the dimensions of a tensor hold: the items of a batch, or the model's own; and how operations change that.

A mean over a tensor is a mean over the items of a batch if each of its elements comes from one sample alone, and as
many of them come from each sample whatever else is in the micro-batch. The functions here keep account of this, and
raise where an operation may mix samples, leave some out, or repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gradgate.autograd_graph import NotUnderstoodError

FREE = "free"  # the model's own, such as features: as long in every micro-batch, of one sample all along
ITEMS = "items"  # may hold samples
OUTPUT = "output"  # all but the first of what comes from a function that cannot be looked into
REPEATED = "repeated"  # the same values, as often as the caller liked


class Dimensions(NamedTuple):
    """What is known of a tensor's dimensions.

    Attributes:
        held: what each holds.
        shape: their sizes.
        samples: whether anything in the tensor comes from samples; else it is made of parameters alone.
        ordered: whether samples stand in the order in which the layer put them out.
        opaque: whether it comes from a function that cannot be looked into.
    """

    held: tuple[str, ...]
    shape: tuple[int, ...]
    samples: bool = True
    ordered: bool = True
    opaque: bool = False


def check_free(name: str, known: Dimensions, dims: Iterable[int], *, also: str = FREE) -> None:
    """Check that no samples can lie along dimensions, for an operation that works along them."""
    for dim in dims:
        if known.held[dim] not in (FREE, also):
            raise NotUnderstoodError(
                f"{name} works along dimension {dim} of shape {list(known.shape)}, which may hold samples"
            )


def without(known: Dimensions, gone: Sequence[int], shape: tuple[int, ...]) -> Dimensions:
    """Return what is left when some dimensions are taken away, or kept at size 1."""
    if len(shape) == len(known.held):
        return known._replace(shape=shape)
    return known._replace(held=tuple(d for i, d in enumerate(known.held) if i not in gone), shape=shape)


# -- two tensors, element by element --------------------------------------------------------------------


def together(name: str, one: Dimensions, other: Dimensions, shape: tuple[int, ...]) -> Dimensions:
    """Return what is known of two tensors that are joined element by element, so sample by sample."""
    if not (one.samples and other.samples):
        return _with_parameter(name, *((one, other) if one.samples else (other, one)), shape)
    dims: list[str] = []
    fits = one.ordered and other.ordered and len(one.held) == len(other.held)
    for a, b, long, wide in zip(one.held, other.held, one.shape, other.shape, strict=False):
        fits &= (a == b and (a == FREE or long == wide)) or ({a, b} == {FREE, REPEATED} and long == wide)
        dims.append(a if a == b else FREE)
    if not fits:
        raise NotUnderstoodError(
            f"{name} joins shapes {list(one.shape)} and {list(other.shape)}, and may pair different samples"
        )
    return Dimensions(tuple(dims), shape, opaque=one.opaque or other.opaque)


def _with_parameter(
    name: str, known: Dimensions, parameter: Dimensions, shape: tuple[int, ...]
) -> Dimensions:
    """A parameter may widen what is not samples, and must be the same for all of them."""
    more = len(shape) - len(known.held)
    dims = (FREE,) * more + known.held
    sizes = (1,) * (len(shape) - len(parameter.shape)) + parameter.shape
    if REPEATED in parameter.held or any(
        size != 1 and held != FREE for held, size in zip(dims, sizes, strict=True)
    ):
        raise NotUnderstoodError(
            f"{name} joins a parameter of shape {list(parameter.shape)} with shape {list(known.shape)}, and may "
            "take another number of it for each sample"
        )
    return known._replace(held=dims, shape=shape)


def with_data(name: str, known: Dimensions, shape: tuple[int, ...]) -> Dimensions:
    """Return what is known of a tensor joined with one that has no graph: a target, or the model's input."""
    if shape == known.shape:
        return known
    if known.samples:
        raise NotUnderstoodError(
            f"{name} broadcasts shape {list(known.shape)} to {list(shape)} against a tensor without a graph"
        )
    return layer_of_elements(name, known, shape)


def layer_of_elements(name: str, parameter: Dimensions, shape: tuple[int, ...]) -> Dimensions:
    """Return what is known where the model's input meets a parameter element by element."""
    sizes = (1,) * (len(shape) - len(parameter.shape)) + parameter.shape
    dims = tuple(ITEMS if size == 1 else FREE for size in sizes)
    if ITEMS not in dims or REPEATED in parameter.held:
        raise NotUnderstoodError(f"{name} leaves no dimension in which samples can lie")
    return Dimensions(dims, shape)


# -- changes of shape -----------------------------------------------------------------------------------


def viewed(known: Dimensions, shape: tuple[int, ...]) -> Dimensions:
    """Return what is known of a view. Dimensions that are split or merged may hold what any of them held."""
    old, new = list(zip(known.held, known.shape, strict=True)), list(shape)
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
    return known._replace(held=(*front, *[kind] * len(new), *reversed(back)), shape=shape)


def squeezed(known: Dimensions, chosen: Iterable[int], shape: tuple[int, ...]) -> Dimensions:
    """Return what is left without those of the chosen dimensions that have size 1."""
    gone = [dim for dim in chosen if known.shape[dim] == 1]
    if all(known.held[dim] == FREE for dim in gone):
        return without(known, gone, shape)
    # It may be a batch of one sample. Of more of them nothing is squeezed, and the dimensions after it move.
    return known._replace(held=(REPEATED if REPEATED in known.held else ITEMS,) * len(shape), shape=shape)


def unsqueezed(known: Dimensions, dim: int, held: str, shape: tuple[int, ...]) -> Dimensions:
    """Return what is known with a new dimension."""
    return known._replace(held=(*known.held[:dim], held, *known.held[dim:]), shape=shape)


def expanded(name: str, known: Dimensions, shape: tuple[int, ...]) -> Dimensions:
    """Return what is known of a tensor some of whose dimensions repeat their values."""
    new = len(shape) - len(known.held)
    wider = [dim for dim, size in enumerate(known.shape) if shape[new + dim] != size]
    check_free(name, known, wider)
    dims = (REPEATED if dim in wider else held for dim, held in enumerate(known.held))
    return known._replace(held=(*[REPEATED] * new, *dims), shape=shape)


def permuted(known: Dimensions, order: Sequence[int], shape: tuple[int, ...]) -> Dimensions:
    """Return what is known with the dimensions in another order."""
    return known._replace(held=tuple(known.held[dim] for dim in order), shape=shape, ordered=False)
