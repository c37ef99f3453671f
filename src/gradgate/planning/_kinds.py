"""What kind of batch a plan is for, and which one it was made with."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gradgate.layout import field_name
from gradgate.planning._samples import Samples
from gradgate.pytree import tensors_in, value_at


def kind_of(samples: Samples) -> Any:
    """Return what is equal for batches with the same fields, or of the same raw samples."""
    if samples.raw:
        return type(samples.batch[0])
    fields = samples.layout.fields()
    return {
        path: place if place == "list" else value_at(samples.batch, path).ndim
        for path, place in fields.items()
    }


def told(kind: Any) -> str:
    """Return that in words."""
    if isinstance(kind, type):
        return f"raw samples of the type {kind.__name__}"
    return ", ".join(
        f"{field_name(path)} ({'a list' if ndim == 'list' else f'{ndim}-dimensional'})"
        for path, ndim in kind.items()
    )


def representative(batch: Any) -> Any:
    """Return what tells a batch from others: its first tensor, for its containers may be made anew."""
    return next(tensors_in(batch), batch)


def identity(batch: Any) -> Callable[[], Any]:
    """Return a function that returns it, as long as it is there."""
    found = representative(batch)
    return weakref.ref(found) if isinstance(found, Tensor) else lambda: found
