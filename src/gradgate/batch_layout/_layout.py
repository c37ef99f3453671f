"""Finds the number of samples in a batch, and how its lists are to be read."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.nn.utils.rnn import PackedSequence

from gradgate.batch_layout._fields import (
    NOT_GIVEN,
    BatchDim,
    FieldDim,
    NotGiven,
    Path,
    field_name,
    is_array,
    is_list,
    is_shared,
    key_of,
    may_be_field,
    select,
)
from gradgate.errors import OptionError
from gradgate.pytree import Attribute, children, has_path, with_children

T = TypeVar("T")

_FIELDS = "fields"


@dataclass(frozen=True)
class Layout:
    """Where a batch holds its samples.

    Attributes:
        samples: the number of samples.
        dims: each array's dimension, or "list" for a list with one entry per sample; "fields" for lists that are
            records. Shared values are omitted.
    """

    samples: int
    dims: Mapping[Path, Any] = field(default_factory=dict)

    def fields(self) -> dict[Path, FieldDim]:
        """Return the fields that hold samples."""
        return {path: dim for path, dim in self.dims.items() if dim != _FIELDS}

    def mapped(self, batch: T, change: Callable[[Path, Any, FieldDim], Any], path: Path = ()) -> T:
        """Return a batch of the same structure, with each field replaced by ``change(path, value, dim)``."""
        dim = self.dims.get(path, _FIELDS)
        if dim != _FIELDS:
            return change(path, batch, dim)  # type: ignore[no-any-return]
        inside = children(batch)
        if not inside or not any(each[: len(path)] == path for each in self.dims):
            return batch
        items = [self.mapped(item, change, (*path, key)) for key, item in inside]
        result: Any = with_children(batch, items)
        # transformers' BatchEncoding holds per-sample tokenizer data next to the tensors.
        encodings = getattr(batch, "_encodings", None)
        if isinstance(encodings, list) and len(encodings) == self.samples:
            result._encodings = change((*path, Attribute("encodings")), encodings, "list")
        return result  # type: ignore[no-any-return]

    def take(self, batch: T, chosen: slice | Sequence[int]) -> T:
        """Return the chosen samples, as a batch of the same structure."""
        return self.mapped(batch, lambda _, value, dim: select(value, dim, chosen))

    def split(self, batch: T, parts: int) -> Iterator[tuple[T, int]]:
        """Yield nearly equal parts of a batch, in order, with their sizes: 10 samples in 3 parts are 4, 3 and 3."""
        edges = [-(-self.samples * part // parts) for part in range(parts + 1)]
        for start, stop in itertools.pairwise(edges):
            yield self.take(batch, slice(start, stop)), stop - start


class _UnreadableError(Exception):
    """A field that cannot be split into samples."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why


@dataclass(frozen=True)
class _Node:
    """A part of a batch that holds samples.

    The samples lie along ``dim`` or in ``fields``. If the part can be read both ways, both are set. ``size`` is the
    number of samples along ``dim``; it is None for a record.
    """

    path: Path
    dim: FieldDim = None
    size: int | None = None
    fields: tuple[_Node, ...] = ()

    def sizes_of_fields(self) -> set[int]:
        sizes = [node.possible_sizes() for node in self.fields]
        return set.intersection(*sizes) if sizes else set()

    def possible_sizes(self) -> set[int]:
        return self.sizes_of_fields() | ({self.size} if self.size is not None else set())

    def constraints(self) -> Iterator[_Node]:
        """Yield the fields that have to agree on one number of samples."""
        if self.size is not None:
            yield self
        else:
            for node in self.fields:
                yield from node.constraints()

    def dims(self, samples: int) -> dict[Path, Any]:
        """Return each field's dimension if the batch has this number of samples."""
        here, below = self.size == samples, samples in self.sizes_of_fields()
        if here and below and samples > 1:
            key = key_of(self.path)
            raise OptionError(
                f"split: {field_name(self.path)} has {samples} entries of size {samples} along dimension 0, which "
                f"may be {samples} fields, or one entry for each of {samples} samples. Say which: "
                f'batch_dim={{{key}: 0}} or batch_dim={{{key}: "list"}}.'
            )
        if here and not below:
            return {self.path: self.dim}
        found = {} if here or self.size is None else {self.path: _FIELDS}
        for node in self.fields:
            found.update(node.dims(samples))
        return found


def layout_of(batch: Any, batch_dim: BatchDim | NotGiven = NOT_GIVEN, like: Layout | None = None) -> Layout:
    """Return where a batch holds its samples.

    Args:
        batch: a pytree.
        batch_dim: the caller's option.
        like: the layout of an earlier batch, whose lists were read in the same way.

    Raises:
        OptionError: a field can be read in no way, or in two ways.
    """
    given = _by_path(batch, batch_dim)
    if like is not None:
        as_before: dict[Path, FieldDim] = {
            path: "list" if dim == "list" else 0
            for path, dim in like.dims.items()
            if dim in ("list", _FIELDS) and has_path(batch, path)
        }
        given = {**as_before, **given}
    try:
        root = _node(batch, (), given, NOT_GIVEN)
    except _UnreadableError as error:
        raise OptionError(_message(error.path, error.why)) from None
    if root is None:
        raise OptionError(
            "split: the batch holds no samples: no tensor, and no list with one entry per sample. Pass "
            "tensors with the samples along dimension 0; or a list of samples, and collate=."
        )
    sizes = root.possible_sizes()
    if len(sizes) == 1:
        (samples,) = sizes
        return Layout(samples, root.dims(samples))
    constraints = list(root.constraints())
    if not sizes:
        raise OptionError(_disagreement(constraints))
    ambiguous = next(node for node in constraints if node.fields)
    raise OptionError(
        f"split: the batch may hold {' or '.join(map(str, sorted(sizes)))} samples: {field_name(ambiguous.path)} "
        "may be fields, or a list with one entry per sample. Say which: batch_dim=0 if all tensors hold the "
        "samples "
        'along dimension 0; batch_dim="list", or {field: "list"}, if a list has one entry per sample.'
    )


def _by_path(batch: Any, batch_dim: BatchDim | NotGiven) -> dict[Path, FieldDim]:
    if isinstance(batch_dim, NotGiven):
        return {}
    by_key = batch_dim if isinstance(batch_dim, Mapping) else {(): batch_dim}
    given = {key if isinstance(key, tuple) else (key,): dim for key, dim in by_key.items()}
    for path, dim in given.items():
        if not (dim is None or dim == "list" or (type(dim) is int and dim >= 0)):
            raise OptionError(
                f"split: batch_dim is {dim!r} for {field_name(path)}; it must be a dimension, "
                '"list" or None (shared).'
            )
        if not has_path(batch, path):
            inside = ", ".join(repr(key) for key, _ in children(batch) or ()) or "no fields"
            raise OptionError(f"split: batch_dim names {field_name(path)}, but the batch has {inside}.")
    return given


def _node(
    value: Any, path: Path, given: Mapping[Path, FieldDim], inherited: FieldDim | NotGiven
) -> _Node | None:
    """Return the :class:`_Node` for a part of a batch, or None if all samples share that part."""
    dim = given.get(path, inherited)
    if dim is None or is_shared(value):
        return None
    if is_array(value):
        dim = 0 if isinstance(dim, NotGiven) else dim
        if not isinstance(dim, int) or dim >= value.ndim:
            plural = "s" if value.ndim > 1 else ""
            raise _UnreadableError(path, f"it has {value.ndim} dimension{plural}, not batch_dim={dim!r}")
        return _Node(path, dim, int(value.shape[dim]))
    inside = None if isinstance(value, PackedSequence) else children(value)
    if inside is None:
        raise _UnreadableError(path, f"it is a {type(value).__name__}")
    listed, items = is_list(value), [item for _, item in inside]
    if listed and not items:
        return _Node(path, "list", 0) if dim == "list" else None
    if listed and (dim == "list" or not any(map(may_be_field, items))):
        return _Node(path, "list", len(items))
    if dim == "list":
        raise _UnreadableError(path, f"it is a {type(value).__name__} of {len(items)}, not a list of samples")
    # A batch is a record, as a DataLoader yields it; but three or more tensors of one shape may be samples.
    ambiguous = listed and isinstance(dim, NotGiven) and len(set(map(_kind, items))) == 1
    if ambiguous and path == ():
        ambiguous = len(items) > 2 and is_array(items[0]) and len({each.shape for each in items}) == 1
    try:
        nodes = [_node(item, (*path, key), given, dim) for key, item in inside]
        fields = tuple(node for node in nodes if node is not None)
    except _UnreadableError:
        if not ambiguous:
            raise
        fields = ()
    if ambiguous:
        return _Node(path, "list", len(items), fields)
    return _Node(path, fields=fields) if fields else None


def _kind(item: Any) -> Any:
    """Return the type, dtype and rank that all samples of a list share, even if they are ragged."""
    return (type(item), item.dtype, item.ndim) if is_array(item) else type(item)


def _disagreement(nodes: Sequence[_Node]) -> str:
    """Return a message that names a field whose number of samples differs from that of most other fields."""
    votes = Counter(size for node in nodes for size in node.possible_sizes())
    count = max(votes, key=lambda size: votes[size])
    odd = next(node for node in nodes if count not in node.possible_sizes())
    other = next(node for node in nodes if count in node.possible_sizes())
    what = "entries" if odd.dim == "list" else f"entries along dimension {odd.dim}"
    why = f"it has {odd.size} {what}, but {field_name(other.path)} holds {count} samples"
    return _message(odd.path, why, array=odd.dim != "list")


def _message(path: Path, why: str, *, array: bool = False) -> str:
    text = f"split: cannot tell which part of {field_name(path)} belongs to which sample: {why}. "
    if path:
        text += f"If all samples share it, pass batch_dim={{{key_of(path)}: None}}"
        text += f"; if its samples are along another dimension, {{{key_of(path)}: 1}}. " if array else ". "
    return text + "For any other layout, pass a list of samples, and collate=."
