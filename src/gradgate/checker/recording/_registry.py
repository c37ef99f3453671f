"""Small numbers for the user's objects. All objects are held weakly, so nothing is kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.nn.parameter import is_lazy

from gradgate.events import Ids, Site

T = TypeVar("T")


class Numbers(Generic[T]):
    """Numbers objects from 0, by identity."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._objects: dict[int, weakref.ref[Any]] = {}
        self._next = 0

    def known(self, thing: T) -> int | None:
        """Return the number of an object that has one."""
        entry = self.entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def number(self, thing: T) -> int:
        """Return the object's number. A new object gets the next one."""
        number = self.known(thing)
        if number is None:
            number, self._next = self._next, self._next + 1
            ref = weakref.ref(thing)
            self.entries[id(thing)] = (ref, number)
            self._objects[number] = ref
        return number

    def get(self, number: int) -> T | None:
        """Return the object, or None if it is gone."""
        ref = self._objects.get(number)
        return ref() if ref is not None else None

    def __len__(self) -> int:
        """Return how many objects were numbered."""
        return self._next

    def alive(self, numbers: Iterable[int] | None = None) -> list[tuple[int, T]]:
        """Return number and object of everything that is alive, or of what is alive of these numbers."""
        objects = self._objects
        if numbers is None:
            refs = list(objects.items())
            found = [(number, thing) for number, ref in refs if (thing := ref()) is not None]
            if len(found) < len(refs):
                for number in {number for number, _ in refs} - {number for number, _ in found}:
                    objects.pop(number, None)
            return found
        known = [(number, objects[number]) for number in numbers if number in objects]
        return [(number, thing) for number, ref in known if (thing := ref()) is not None]


@dataclass
class ParameterRecord:
    """What was seen of one parameter so far. :class:`gradgate.events.Parameter` says what the fields mean."""

    shape: tuple[int, ...]
    nbytes: int
    dtype: str
    made: Site = ()
    made_at: int = -1
    name: str = ""
    root: str = ""
    registered: bool = True
    held: bool = False  # some module that was met has held it
    trainable: bool = True
    reached: bool = False
    looks: int = 0
    zeros: int = 0
    zeroed: Site = ()
    still: bool = True
    began: float | None = None
    norms: list[float] = field(default_factory=list)
    misfrozen: str = ""


def shape_and_bytes(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """Return a tensor's shape and size in bytes. A lazy module's uninitialized parameter has none."""
    if is_lazy(tensor):
        return (), 0
    return tuple(tensor.shape), tensor.numel() * tensor.element_size()


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over ranks: reading a value would make all of them communicate.

    FSDP gathers the shards for the forward pass, and then frees the memory of the whole.
    """
    if type(tensor).__name__ == "DTensor":
        return True
    try:
        return tensor.numel() > 0 and tensor.untyped_storage().size() == 0
    except (RuntimeError, NotImplementedError, ValueError):  # sparse and lazy tensors have no storage
        return False


class Parameters:
    """The parameters that losses reach and optimizers hold, and what was seen of each."""

    def __init__(self) -> None:
        self.numbers: Numbers[Tensor] = Numbers()
        self.records: dict[int, ParameterRecord] = {}
        self.owners: dict[int, set[int]] = {}  # parameter: optimizers that hold it
        self._origins: dict[int, tuple[weakref.ref[Tensor], Site, int]] = {}
        self._sets: dict[Ids, Ids] = {}

    def created(self, tensor: Tensor, site: Site, at: int) -> None:
        """Remember where a parameter was created. Most are never asked for again."""
        key, origins = id(tensor), self._origins
        origins[key] = (weakref.ref(tensor, lambda _: origins.pop(key, None)), site, at)

    def number(self, tensor: Tensor) -> int:
        """Return the parameter's number. A new one gets a record."""
        entry = self.numbers.entries.get(id(tensor))  # as `known` does, without its call: this runs often
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        dtype = str(tensor.dtype).removeprefix("torch.")
        record = ParameterRecord(*shape_and_bytes(tensor), dtype, trainable=tensor.requires_grad)
        number = self.numbers.number(tensor)
        origin = self._origins.get(id(tensor))
        if origin is not None and origin[0]() is tensor:
            record.made, record.made_at = origin[1:]
        self.records[number] = record
        return number

    def ids(self, tensors: Iterable[Tensor]) -> Ids:
        """Return the numbers of several parameters, new ones included."""
        return self.same(frozenset([self.number(tensor) for tensor in tensors]))

    def same(self, ids: Iterable[int | None]) -> Ids:
        """Return the one object that is this set in every event. None is left out."""
        numbers = frozenset(ids)
        if None in numbers:
            numbers -= {None}
        return self._sets.setdefault(numbers, numbers)  # type: ignore[arg-type]

    def tensors(self, ids: Iterable[int]) -> list[tuple[int, Tensor]]:
        """Return the parameters of these numbers that are alive and still leaves: FSDP turns some into views."""
        return [(number, tensor) for number, tensor in self.numbers.alive(ids) if tensor.is_leaf]
