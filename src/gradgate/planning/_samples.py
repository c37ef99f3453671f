"""The samples of a batch: some of them taken together, and their padding trimmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradgate.errors import OptionError
from gradgate.layout import UNSAID, BatchDim, Layout, Path, Place, Unsaid, check_batch, layout_of, taken
from gradgate.planning._lengths import Lengths, lengths_of
from gradgate.planning._trim import Dims, Trim, dims_to_trim

Collate = Callable[[list[Any]], Any]


class Samples:
    """A batch as samples.

    Args:
        batch: one batch; with ``collate`` a list of raw samples.
        lengths: where their lengths are found; None: they are all alike.
        collate: makes a batch of raw samples.
        batch_dim: where the samples are, as the caller said it.
        trim: what is trimmed with the lengths, as the caller named it.
        like: an earlier batch: lists are read, and fields are trimmed, as there.
        all_full: find the fields to be trimmed even where nothing is.

    Raises:
        OptionError: the batch has no samples, or they cannot be told apart.
    """

    def __init__(
        self,
        batch: Any,
        *,
        lengths: Any = None,
        collate: Collate | None = None,
        batch_dim: BatchDim | Unsaid = UNSAID,
        trim: Trim = None,
        like: Samples | None = None,
        all_full: bool = False,
    ) -> None:
        self.batch, self._collate = batch, collate
        if collate is not None:
            self.layout = Layout(len(batch), {(): "list"})
        else:
            if isinstance(batch_dim, Unsaid):
                check_batch(batch, "plan", "plan.pool(window), which makes one batch of them")
            self.layout = layout_of(batch, batch_dim, None if like is None else like.layout)
        self.count = self.layout.samples
        if not self.count:
            raise OptionError("plan: the batch has no samples. Give one with at least one sample.")
        self.lengths: Lengths | None = None
        self.dims: Dims = {}
        if lengths is not None:
            self.lengths = lengths_of(lengths, batch, self.count, raw=collate is not None)
            if collate is None:
                known = like.dims if like is not None and like.dims else None
                self.lengths, self.dims = dims_to_trim(
                    batch, self.layout, self.lengths, trim, known, all_full=all_full
                )

    def take(self, indices: Sequence[int], length: int = 0) -> Any:
        """Return some samples as a batch of the same types, trimmed to a length (0: not at all)."""
        if self._collate is not None:
            return self._collate([self.batch[index] for index in indices])
        # Neighbours of full length are a view: nothing is copied.
        run = slice(indices[0], indices[0] + len(indices))
        neighbours = not self.copies and list(indices) == list(range(run.start, run.stop))
        chosen = run if neighbours else list(indices)

        def some(path: Path, field: Any, place: Place) -> Any:
            return taken(self._trimmed(path, field, length), place, chosen)

        return self.layout.mapped(self.batch, some)

    def _trimmed(self, path: Path, field: Any, length: int) -> Any:
        dims, lengths = self.dims.get(path), self.lengths
        if not length or dims is None or lengths is None or length >= lengths.width:
            return field
        columns = slice(lengths.width - length, None) if lengths.left else slice(length)
        return field[tuple(columns if dim in dims else slice(None) for dim in range(field.ndim))]

    @property
    def raw(self) -> bool:
        """Whether the samples are yet to be collated."""
        return self._collate is not None

    @property
    def copies(self) -> bool:
        """Whether taking samples makes copies of them."""
        return self.lengths is not None or self._collate is not None
