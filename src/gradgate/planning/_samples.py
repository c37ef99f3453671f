"""A batch as samples: select some of them, and trim their padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradgate.batch_layout import (
    UNSAID,
    BatchDim,
    FieldDim,
    Layout,
    Path,
    Unsaid,
    check_batch,
    field_name,
    layout_of,
)
from gradgate.errors import OptionError
from gradgate.planning._lengths import Lengths, lengths_of
from gradgate.planning._trim import Dims, Trim, dims_to_trim
from gradgate.pytree import value_at

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class BatchOptions:
    """How a caller's batches are read; the options of :func:`plan`."""

    lengths: Any = None
    collate: Collate | None = None
    batch_dim: BatchDim | Unsaid = UNSAID
    trim: Trim = None
    pad: Any = None


class Samples:
    """A batch as samples.

    Args:
        batch: one batch; with ``collate`` a list of samples.
        options: how it is read.
        like: an earlier batch: lists are read, and fields are trimmed, as they were there.
        even_if_full: find the fields to trim even if no sample is shorter than the others.

    Raises:
        OptionError: the batch has no samples, or they cannot be told apart.
    """

    def __init__(
        self, batch: Any, options: BatchOptions, like: Samples | None = None, *, even_if_full: bool = False
    ) -> None:
        self.batch, self._collate = batch, options.collate
        if self.collates:
            self.layout = Layout(len(batch), {(): "list"})
        else:
            if isinstance(options.batch_dim, Unsaid):
                check_batch(batch, "plan", "plan.pool(window), which makes one batch of them")
            self.layout = layout_of(batch, options.batch_dim, None if like is None else like.layout)
        self.count = self.layout.samples
        if not self.count:
            raise OptionError("plan: the batch has no samples. Pass one with at least one sample.")
        self.lengths: Lengths | None = None
        self.dims: Dims = {}
        if options.lengths is not None:
            self.lengths = lengths_of(options.lengths, batch, self.count, collates=self.collates)
            if not self.collates:
                known = like.dims if like is not None and like.dims else None
                self.lengths, self.dims = dims_to_trim(
                    batch, self.layout, self.lengths, options.trim, known=known, even_if_full=even_if_full
                )

    @property
    def collates(self) -> bool:
        """Whether the batch is a list of samples that are yet to be collated."""
        return self._collate is not None

    @property
    def copies(self) -> bool:
        """Whether selecting samples copies them."""
        return self.lengths is not None or self.collates

    def take(self, indices: Sequence[int], length: int = 0) -> Any:
        """Return some samples as a batch of the same types, trimmed to a length (0: not at all)."""
        if self._collate is not None:
            return self._collate([self.batch[index] for index in indices])
        chosen: slice | list[int] = list(indices)
        if not self.copies and chosen == list(range(indices[0], indices[0] + len(indices))):
            chosen = slice(indices[0], indices[0] + len(indices))  # a view
        trimmed = self.layout.mapped(self.batch, lambda path, field, _: self._trimmed(path, field, length))
        return self.layout.take(trimmed, chosen)

    def _trimmed(self, path: Path, field: Any, length: int) -> Any:
        dims, lengths = self.dims.get(path), self.lengths
        if not length or dims is None or lengths is None or length >= lengths.width:
            return field
        columns = slice(lengths.width - length, None) if lengths.left else slice(length)
        return field[tuple(columns if dim in dims else slice(None) for dim in range(field.ndim))]

    @property
    def signature(self) -> type | dict[Path, FieldDim]:
        """What equal kinds of batches share: the fields and their dimensions, or the type of the raw samples."""
        if self.collates:
            return type(self.batch[0])
        fields = self.layout.fields()
        return {
            path: dim if dim == "list" else value_at(self.batch, path).ndim for path, dim in fields.items()
        }


def signature_text(signature: type | dict[Path, FieldDim]) -> str:
    """Return a batch signature in words."""
    if isinstance(signature, type):
        return f"raw samples of the type {signature.__name__}"
    return ", ".join(
        f"{field_name(path)} ({'a list' if ndim == 'list' else f'{ndim}-dimensional'})"
        for path, ndim in signature.items()
    )
