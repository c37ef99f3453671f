"""The one number of samples, and the one way to read each list, that fit the whole batch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.nn.utils.rnn import PackedSequence

from gradgate.errors import OptionError
from gradgate.layout._fields import (
    UNSAID,
    BatchDim,
    Path,
    Place,
    Unsaid,
    field_name,
    is_array,
    is_list,
    is_shared,
    key_of,
    may_be_field,
    taken,
)
from gradgate.pytree import Attribute, children, with_children

T = TypeVar("T")

_FIELDS = "fields"
_LISTS = ("list", _FIELDS)


@dataclass(frozen=True)
class Layout:
    """Where a batch holds its samples.

    Attributes:
        samples: how many there are.
        places: of each array the dimension, of each list with one entry for each sample "list"; of lists that are
            records "fields". What is shared is not in it.
    """

    samples: int
    places: Mapping[Path, Any] = field(default_factory=dict)

    def fields(self) -> dict[Path, Place]:
        """Return what holds samples."""
        return {path: place for path, place in self.places.items() if place != _FIELDS}

    def mapped(self, batch: T, change: Callable[[Path, Any, Place], Any]) -> T:
        """Return a batch of the same types, with ``change(path, value, place)`` for each field."""
        result: T = self._mapped(batch, (), change)
        return result

    def _mapped(self, value: Any, path: Path, change: Callable[[Path, Any, Place], Any]) -> Any:
        place = self.places.get(path, _FIELDS)
        if place != _FIELDS:
            return change(path, value, place)
        inside = children(value)
        if not inside or not any(each[: len(path)] == path for each in self.places):
            return value
        result = with_children(value, [self._mapped(item, (*path, key), change) for key, item in inside])
        # What a tokenizer knows of each sample beside its tensors (transformers' BatchEncoding).
        encodings = getattr(value, "_encodings", None)
        if isinstance(encodings, list) and len(encodings) == self.samples:
            result._encodings = change((*path, Attribute("encodings")), encodings, "list")
        return result

    def take(self, batch: T, chosen: slice | Sequence[int]) -> T:
        """Return some samples, as a batch of the same types."""
        return self.mapped(batch, lambda _, value, place: taken(value, place, chosen))

    def split(self, batch: T, parts: int) -> Iterator[tuple[T, int]]:
        """Yield nearly equal parts of a batch, in order, and their sizes: 10 samples in 3 are 4, 3 and 3."""
        edges = [-(-self.samples * part // parts) for part in range(parts + 1)]
        for start, stop in itertools.pairwise(edges):
            yield self.take(batch, slice(start, stop)), stop - start


class _UnreadableError(Exception):
    """A field of which it cannot be told what belongs to which sample."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why


@dataclass(frozen=True)
class _Node:
    """A part of a batch that holds samples: at a place of its own, in its fields, or in one of these two ways.

    ``size`` is the number of samples if they are at ``place``; None where it is a record and nothing else.
    """

    path: Path
    place: Place = None
    size: int | None = None
    fields: tuple[_Node, ...] = ()

    def in_fields(self) -> set[int]:
        each = [node.possible() for node in self.fields]
        return set.intersection(*each) if each else set()

    def possible(self) -> set[int]:
        """Return the numbers of samples that it may hold."""
        return self.in_fields() | ({self.size} if self.size is not None else set())

    def disagreeing(self) -> Iterator[_Node]:
        """Yield the fields that have to agree on one number, records taken apart."""
        if self.size is not None:
            yield self
        else:
            for node in self.fields:
                yield from node.disagreeing()

    def places(self, samples: int) -> dict[Path, Any]:
        """Return where so many samples are."""
        here, below = self.size == samples, samples in self.in_fields()
        if here and below and samples > 1:
            raise OptionError(
                f"split: {field_name(self.path)} has {samples} entries, each with {samples} along dimension 0: "
                f"{samples} fields, or one entry for each of {samples} samples. Say which: "
                f'batch_dim={{{key_of(self.path)}: 0}} or batch_dim={{{key_of(self.path)}: "list"}}.'
            )
        if here and not below:
            return {self.path: self.place}
        found = {} if here or self.size is None else {self.path: _FIELDS}
        for node in self.fields:
            found.update(node.places(samples))
        return found


def layout_of(batch: Any, batch_dim: BatchDim | Unsaid = UNSAID, like: Layout | None = None) -> Layout:
    """Return where a batch holds its samples.

    Args:
        batch: a pytree.
        batch_dim: what the caller says of it.
        like: the layout of an earlier batch: lists are read as they were read there.

    Raises:
        OptionError: a field can be read in no way, or in two.
    """
    given = _by_path(batch, batch_dim)
    if like is not None:
        learned: dict[Path, Place] = {
            path: "list" if place == "list" else 0 for path, place in like.places.items() if place in _LISTS
        }
        given = {**{path: place for path, place in learned.items() if _leads_to(batch, path)}, **given}
    try:
        root = _node(batch, (), given, UNSAID)
    except _UnreadableError as error:
        raise OptionError(_message(error.path, error.why)) from None
    if root is None:
        raise OptionError(
            "split: the batch holds no samples that could be told apart: no tensor, and no list with one entry for "
            "each. Pass tensors with the samples along dimension 0; or a list of samples, and collate=."
        )
    sizes = root.possible()
    if len(sizes) == 1:
        (samples,) = sizes
        return Layout(samples, root.places(samples))
    if sizes:
        either = next(node for node in root.disagreeing() if node.fields)
        counts = " or ".join(map(str, sorted(sizes)))
        raise OptionError(
            f"split: the batch may hold {counts} samples: {field_name(either.path)} may be fields or have one "
            "entry for each. Say which: batch_dim=0 if all tensors hold the samples along dimension 0; "
            'batch_dim="list", or {field: "list"}, if a list has one entry for each.'
        )
    raise OptionError(_disagreement(list(root.disagreeing())))


def _by_path(batch: Any, batch_dim: BatchDim | Unsaid) -> dict[Path, Place]:
    if isinstance(batch_dim, Unsaid):
        return {}
    if not isinstance(batch_dim, Mapping):
        batch_dim = {(): batch_dim}
    given = {key if isinstance(key, tuple) else (key,): place for key, place in batch_dim.items()}
    for path, place in given.items():
        if not (place is None or place == "list" or (type(place) is int and place >= 0)):
            raise OptionError(
                f'split: batch_dim is {place!r} for {field_name(path)}; it is a dimension, "list" or None (shared).'
            )
        if not _leads_to(batch, path):
            inside = ", ".join(repr(key) for key, _ in children(batch) or ()) or "no fields"
            raise OptionError(f"split: batch_dim names {field_name(path)}, and the batch has {inside}.")
    return given


def _leads_to(value: Any, path: Path) -> bool:
    for key in path:
        inside = dict(children(value) or ())
        if key not in inside:
            return False
        value = inside[key]
    return True


def _node(value: Any, path: Path, given: Mapping[Path, Place], inherited: Place | Unsaid) -> _Node | None:
    """Return what a part of a batch may be; None if all samples share it."""
    place = given.get(path, inherited)
    if place is None or is_shared(value):
        return None
    if is_array(value):
        dim = 0 if isinstance(place, Unsaid) else place
        if not isinstance(dim, int) or dim >= value.ndim:
            raise _UnreadableError(
                path, f"it has {value.ndim} dimension{'s'[: value.ndim > 1]}, not batch_dim={dim!r}"
            )
        return _Node(path, dim, int(value.shape[dim]))
    inside = None if isinstance(value, PackedSequence) else children(value)
    if inside is None:
        raise _UnreadableError(path, f"it is a {type(value).__name__}")
    listed, items = is_list(value), [item for _, item in inside]
    if listed and not items:
        return _Node(path, "list", 0) if place == "list" else None
    if listed and (place == "list" or not any(map(may_be_field, items))):
        return _Node(path, "list", len(items))
    if place == "list":
        raise _UnreadableError(path, f"it is a {type(value).__name__} of {len(items)}, not a list of samples")
    # A batch is a record, as a DataLoader yields it; but more than a pair of tensors that are alike may be samples.
    either = listed and isinstance(place, Unsaid) and len(set(map(_kind, items))) == 1
    if either and path == ():
        either = len(items) > 2 and is_array(items[0]) and len({each.shape for each in items}) == 1
    try:
        nodes = [_node(item, (*path, key), given, place) for key, item in inside]
        fields = tuple(node for node in nodes if node is not None)
    except _UnreadableError:
        if not either:
            raise
        fields = ()
    if either:
        return _Node(path, "list", len(items), fields)
    return _Node(path, fields=fields) if fields else None


def _kind(item: Any) -> Any:
    """Return what is equal for all samples of a list, ragged ones too."""
    return (type(item), item.dtype, item.ndim) if is_array(item) else type(item)


def _disagreement(nodes: Sequence[_Node]) -> str:
    """Return what to say of fields that do not agree on the number of samples: the one against most others."""
    votes = Counter(size for node in nodes for size in node.possible())
    count = max(votes, key=lambda size: votes[size])
    odd = next(node for node in nodes if count not in node.possible())
    other = next(node for node in nodes if count in node.possible())
    what = "entries" if odd.place == "list" else f"along dimension {odd.place}"
    return _message(
        odd.path,
        f"it has {odd.size} {what}, and {field_name(other.path)} holds {count} samples",
        array=odd.place != "list",
    )


def _message(path: Path, why: str, *, array: bool = False) -> str:
    text = f"split: what of {field_name(path)} belongs to which sample cannot be told: {why}. "
    if path:
        text += f"If all samples share it, say batch_dim={{{key_of(path)}: None}}"
        text += f"; if they are along another dimension, {{{key_of(path)}: 1}}. " if array else ". "
    return text + "For any other layout pass a list of samples, and collate=."
