"""One batch, or a list of micro-batches: what looks like the other is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from gradgate.errors import OptionError
from gradgate.layout._fields import is_array, is_list, may_be_field
from gradgate.pytree import children


def looks_like_window(batch: Any) -> bool:
    """Say whether a list or tuple holds micro-batches, or samples, rather than fields.

    Its entries are containers that all look the same inside, or tensors that differ in nothing but their first
    dimension.
    """
    if not is_list(batch) or not batch:
        return False
    if all(map(is_array, batch)):
        return len({each.shape[0] for each in batch}) > 1 and len({_trailing(each) for each in batch}) == 1
    return all(children(each) is not None for each in batch) and len({_kind(each) for each in batch}) == 1


def check_batch(batch: Any, verb: str, several: str, *loaders: type) -> None:
    """Raise OptionError for micro-batches in place of one batch; ``several`` says what to call with those."""
    sequence = isinstance(batch, Sequence) and not isinstance(batch, (list, tuple, str, bytes))
    if sequence or isinstance(batch, (Iterator, DataLoader, *loaders)):
        what = f"this is a {type(batch).__name__}"
    elif looks_like_window(batch):
        what = (
            f"this {type(batch).__name__} of {len(batch)} looks like several: its entries are all of one kind"
        )
    else:
        return
    raise OptionError(
        f"{verb}: batch is one batch, and {what}. Pass micro-batches to {several}, uncollated samples with "
        "collate=. If they are the fields of one batch, say so: batch_dim=0."
    )


def looks_like_batch(window: Any) -> bool:
    """Say whether a list or tuple holds the fields of one batch: tensors of one first size, of several kinds."""
    if not is_list(window) or not all(map(is_array, window)):
        return False
    return len({each.shape[0] for each in window}) == 1 and len({_kind(each) for each in window}) > 1


def _trailing(value: Any) -> Any:
    return type(value), value.dtype, tuple(value.shape[1:])


def _kind(value: Any) -> Any:
    """Return what is equal for micro-batches of one loader, whose sizes and widths may differ."""
    if is_array(value):
        return type(value), value.dtype, value.ndim
    inside = children(value)
    if inside is None:
        return type(value)
    if is_list(value) and not any(may_be_field(item) for _, item in inside):
        return type(value), frozenset(type(item) for _, item in inside)
    return type(value), *((key, _kind(item)) for key, item in inside)
