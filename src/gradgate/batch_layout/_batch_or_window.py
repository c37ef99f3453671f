"""Distinguish one batch from a list of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from gradgate.batch_layout._fields import is_array, is_list, may_be_field
from gradgate.errors import OptionError
from gradgate.pytree import children


def looks_like_window(batch: Any) -> bool:
    """Return whether the entries of a list or tuple are micro-batches or samples rather than fields.

    True if they are containers with the same structure, or tensors that differ only in their first dimension.
    """
    if not is_list(batch) or not batch:
        return False
    if all(map(is_array, batch)):
        trailing = {(type(each), each.dtype, tuple(each.shape[1:])) for each in batch}
        return len({each.shape[0] for each in batch}) > 1 and len(trailing) == 1
    return (
        all(children(each) is not None for each in batch) and len({_structure(each) for each in batch}) == 1
    )


def looks_like_batch(window: Any) -> bool:
    """Return whether a list holds fields: tensors with equal first dimensions, but different dtypes or ranks."""
    if not is_list(window) or not all(map(is_array, window)):
        return False
    return len({each.shape[0] for each in window}) == 1 and len({_structure(each) for each in window}) > 1


def check_batch(batch: Any, verb: str, several: str, *loaders: type) -> None:
    """Raise OptionError for several micro-batches. ``several`` names the call that accepts them."""
    sequence = isinstance(batch, Sequence) and not isinstance(batch, (list, tuple, str, bytes))
    if sequence or isinstance(batch, (Iterator, DataLoader, *loaders)):
        what = f"this is a {type(batch).__name__}"
    elif looks_like_window(batch):
        what = (
            f"this {type(batch).__name__} of {len(batch)} looks like several: its entries have one structure"
        )
    else:
        return
    raise OptionError(
        f"{verb}: batch must be one batch, but {what}. Pass micro-batches to {several}. Pass uncollated samples "
        "with collate=. If these are the fields of one batch, pass batch_dim=0."
    )


def _structure(value: Any) -> Any:
    """Return the structure that all micro-batches of one loader share, regardless of their sizes."""
    if is_array(value):
        return type(value), value.dtype, value.ndim
    inside = children(value)
    if inside is None:
        return type(value)
    if is_list(value) and not any(may_be_field(item) for _, item in inside):
        return type(value), frozenset(type(item) for _, item in inside)
    return type(value), *((key, _structure(item)) for key, item in inside)
