"""Finds the number of samples in a batch, and how its lists are to be read."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
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
from gradgate.batch_layout._shared import Array, question, shared_arrays
from gradgate.errors import OptionError
from gradgate.pytree import Attribute, children, has_path, value_at, with_children

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

    def where(self) -> str:
        """Return where the first field holds its samples, as text."""
        path, dim = next(iter(self.fields().items()))
        return ("as the entries" if dim == "list" else f"along dimension {dim}") + f" of {field_name(path)}"

    def take(self, batch: T, chosen: slice | Sequence[int]) -> T:
        """Return the chosen samples, as a batch of the same structure."""
        return self.mapped(batch, lambda _, value, dim: select(value, dim, chosen))

    def split(self, batch: T, parts: int) -> Iterator[tuple[T, int]]:
        """Yield nearly equal parts of a batch, in order, with their sizes: 10 samples in 3 parts are 4, 3 and 3."""
        edges = [-(-self.samples * part // parts) for part in range(parts + 1)]
        for start, stop in itertools.pairwise(edges):
            yield self.take(batch, slice(start, stop)), stop - start


class _UnreadableError(Exception):
    """A field that cannot be split into samples. ``instead`` says what to pass, if the usual advice is wrong."""

    def __init__(self, path: Path, why: str, instead: str = "") -> None:
        super().__init__(path, why)
        self.path, self.why, self.instead = path, why, instead


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


def layout_of(
    batch: Any, batch_dim: BatchDim | NotGiven = NOT_GIVEN, like: Layout | None = None, certain: Any = None
) -> Layout:
    """Return where a batch holds its samples.

    Args:
        batch: a pytree.
        batch_dim: the caller's option.
        like: the layout of an earlier batch, whose fields were read in the same way.
        certain: a field that certainly holds samples, because the caller has named it as their lengths.

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
        raise OptionError(_message(error.path, error.why, instead=error.instead)) from None
    if root is None:
        raise OptionError(
            "split: the batch holds no samples: no tensor, and no list with one entry per sample. Pass "
            "tensors with the samples along dimension 0; or a list of samples, and collate=."
        )
    sizes = root.possible_sizes()
    if len(sizes) == 1:
        (samples,) = sizes
        layout = Layout(samples, root.dims(samples))
        if like is None and samples > 1:
            _refuse_shared(batch, layout, given, certain)
        return layout
    constraints = list(root.constraints())
    if not sizes:
        raise OptionError(_disagreement(batch, constraints))
    ambiguous = next(node for node in constraints if node.fields)
    raise OptionError(
        f"split: the batch may hold {' or '.join(map(str, sorted(sizes)))} samples: {field_name(ambiguous.path)} "
        "may be fields, or a list with one entry per sample. Say which: batch_dim=0 if all tensors hold the "
        "samples "
        'along dimension 0; batch_dim="list", or {field: "list"}, if a list has one entry per sample.'
    )


def _refuse_shared(batch: Any, layout: Layout, given: Mapping[Path, FieldDim], certain: Any) -> None:
    """Raise OptionError for arrays that all samples may share."""
    fields = {path: dim for path, dim in layout.dims.items() if isinstance(dim, int)}
    arrays = {path: Array(value_at(batch, path), dim) for path, dim in fields.items()}
    arrays = {path: array for path, array in arrays.items() if array.value is not certain}
    settled = {path for path in arrays if any(path[:stop] in given for stop in range(len(path) + 1))}
    reasons = shared_arrays(arrays, settled, layout.samples)
    if reasons:
        raise OptionError(question(reasons, layout.samples))


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
    _refuse_opaque(value, path)
    if isinstance(dim, NotGiven) and path == () and _is_keyed_by_sample(value):
        raise _UnreadableError(
            path,
            "its keys are integers, so each entry may be a field or a sample",
            "If they are fields, pass batch_dim=0. If they are samples, pass a list of them, "
            "list(batch.values()), and collate=, which turns some of them into the input of loss_fn.",
        )
    if is_array(value):
        dim = 0 if isinstance(dim, NotGiven) else dim
        if not isinstance(dim, int) or dim >= value.ndim:
            plural = "s" if value.ndim > 1 else ""
            raise _UnreadableError(path, f"it has {value.ndim} dimension{plural}, not batch_dim={dim!r}")
        return _Node(path, dim, int(value.shape[dim]))
    inside = children(value)
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


def _refuse_opaque(value: Any, path: Path) -> None:
    """Raise _UnreadableError for data that holds samples, but cannot be sliced."""
    if isinstance(value, PackedSequence):
        raise _UnreadableError(
            path,
            "it is a PackedSequence, whose rows interleave the samples",
            "Pass a list of samples, with the sequences from unpack_sequence(...), and collate=, which packs some "
            "of them: pack_sequence(sequences, enforce_sorted=False).",
        )
    if not isinstance(value, Tensor):
        return
    if value.is_nested:
        raise _UnreadableError(
            path,
            "it is a nested tensor, which torch cannot slice",
            "Pass a list of samples, with the parts from unbind(), and collate=, which nests some of them.",
        )
    if value.layout != torch.strided:
        where = f"pass batch_dim={{{key_of(path)}: None}}" if path else "leave it out of the batch"
        raise _UnreadableError(
            path,
            f"it is a sparse tensor ({str(value.layout).removeprefix('torch.')}), which torch cannot slice",
            f"If all samples share it, {where}. If each sample has its own, pass a list of samples, and collate=. "
            "If its rows are the nodes of one graph, no split is exact: sample subgraphs.",
        )


def _is_keyed_by_sample(value: Any) -> bool:
    """Return whether this is a dict from integers to entries of one kind, as samples are."""
    if not isinstance(value, Mapping) or not value:
        return False
    return all(type(key) is int for key in value) and len(set(map(_kind, value.values()))) == 1


def _kind(item: Any) -> Any:
    """Return the type, dtype and rank that all samples of a list share, even if they are ragged."""
    return (type(item), item.dtype, item.ndim) if is_array(item) else type(item)


def _disagreement(batch: Any, nodes: Sequence[_Node]) -> str:
    """Return a message that names a field whose number of samples differs from that of most other fields."""
    arrays = {n.path: Array(value_at(batch, n.path), n.dim) for n in nodes if isinstance(n.dim, int)}
    totals = {size for array in arrays.values() for size in array.shape[:2]}
    for path, array in arrays.items():
        if array.is_cumulative(totals):
            total = int(array.value[-1])
            return _message(
                path,
                f"it holds cumulative lengths, from 0 to {total}, of sequences that are packed into one",
                instead="Pass a list of the sequences, and collate=, which packs some of them and computes their "
                "cumulative lengths.",
            )
    votes = Counter(size for node in nodes for size in node.possible_sizes())
    count = max(votes, key=lambda size: votes[size])
    odd = next(node for node in nodes if count not in node.possible_sizes())
    other = next(node for node in nodes if count in node.possible_sizes())
    what = "entries" if odd.dim == "list" else f"entries along dimension {odd.dim}"
    why = f"it has {odd.size} {what}, but {field_name(other.path)} holds {count} samples"
    text = _message(odd.path, why, array=odd.dim != "list")
    if isinstance(batch, Mapping) and len(set(map(_kind, batch.values()))) == 1:
        text += " If each entry of the dict is a sample, that list is list(batch.values())."
    return text


def _message(path: Path, why: str, *, array: bool = False, instead: str = "") -> str:
    text = f"split: cannot tell which part of {field_name(path)} belongs to which sample: {why}. "
    if instead:
        return text + instead
    if path:
        text += f"If all samples share it, pass batch_dim={{{key_of(path)}: None}}"
        text += f"; if its samples are along another dimension, {{{key_of(path)}: 1}}. " if array else ". "
    return text + "For any other layout, pass a list of samples, and collate=."
