"""Small numbers for what the user made. Nothing is kept alive: objects are held weakly."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.nn.parameter import is_lazy

from gradgate.events import Ids, Site

T = TypeVar("T")


class Numbers(Generic[T]):
    """Numbers objects from 0, by identity, without keeping them alive."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._objects: dict[int, weakref.ref[Any]] = {}
        self._next = 0

    def known(self, thing: T) -> int | None:
        """Return the number of an object that has one."""
        entry = self._numbers.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def number(self, thing: T) -> int:
        """Return the object's number, a new one where it has none."""
        number = self.known(thing)
        if number is None:
            number, self._next = self._next, self._next + 1
            ref = weakref.ref(thing)
            self._numbers[id(thing)] = (ref, number)
            self._objects[number] = ref
        return number

    def get(self, number: int) -> T | None:
        """Return the object, or None where it is gone."""
        ref = self._objects.get(number)
        return ref() if ref is not None else None

    def __len__(self) -> int:
        """Return how many were numbered."""
        return self._next

    def alive(self) -> Iterator[tuple[int, T]]:
        """Yield number and object of everything that still lives."""
        for number, ref in list(self._objects.items()):
            thing = ref()
            if thing is not None:
                yield number, thing
            else:
                del self._objects[number]  # what is gone is not looked for again


@dataclass
class Sight:
    """What was seen of one parameter so far."""

    shape: tuple[int, ...]
    nbytes: int
    made: Site = ()
    made_at: int = -1
    copied: bool = False
    name: str = ""
    root: str = ""
    registered: bool = True  # until it is seen that no live module holds it
    trainable: bool = True
    reached: bool = False
    looks: int = 0
    zeros: int = 0
    zeroed: Site = ()
    still: bool = True
    began: float | None = None
    norms: list[float] = field(default_factory=list)


def extent(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """Return a tensor's shape and its bytes; none while it is not initialised (a lazy module's)."""
    if is_lazy(tensor):
        return (), 0
    return tuple(tensor.shape), tensor.numel() * tensor.element_size()


def is_sharded(tensor: Tensor) -> bool:
    """Say whether a tensor lies in parts on several ranks: to ask it for a number makes all of them exchange.

    FSDP puts the parts together for the forward pass, and frees the memory of the whole again.
    """
    if type(tensor).__name__ == "DTensor":
        return True
    try:
        return tensor.numel() > 0 and tensor.untyped_storage().size() == 0
    except (RuntimeError, NotImplementedError, ValueError):  # sparse ones have none, nor what is lazy
        return False


class Parameters:
    """The parameters that losses reach and optimizers hold, and what was seen of each."""

    def __init__(self) -> None:
        self.numbers: Numbers[Tensor] = Numbers()
        self.sights: dict[int, Sight] = {}
        self._origins: dict[int, tuple[weakref.ref[Tensor], Site, int, bool]] = {}
        self._sets: dict[Ids, Ids] = {}
        self.owned: set[int] = set()  # by an optimizer

    def created(self, tensor: Tensor, site: Site, at: int, copied: bool) -> None:
        """Remember where a parameter was made; most are never asked for again."""
        key = id(tensor)
        origins = self._origins

        def forget(_: weakref.ref[Tensor]) -> None:
            origins.pop(key, None)

        origins[key] = (weakref.ref(tensor, forget), site, at, copied)

    def number(self, tensor: Tensor) -> int:
        """Return the parameter's number, and begin to keep what is seen of it."""
        number = self.numbers.known(tensor)
        if number is None:
            sight = Sight(*extent(tensor), trainable=tensor.requires_grad)
            number = self.numbers.number(tensor)
            origin = self._origins.get(id(tensor))
            if origin is not None and origin[0]() is tensor:
                sight.made, sight.made_at, sight.copied = origin[1:]
            self.sights[number] = sight
        return number

    def ids(self, tensors: Iterable[Tensor]) -> Ids:
        """Return the numbers of several, new ones included."""
        return self.same(frozenset([self.number(tensor) for tensor in tensors]))

    def same(self, ids: Iterable[int]) -> Ids:
        """Return the one object that stands for this set in every event."""
        ids = frozenset(ids)
        return self._sets.setdefault(ids, ids)

    def tensors(self, ids: Iterable[int]) -> list[tuple[int, Tensor]]:
        """Return those of the numbered parameters that still live, and still are leaves: FSDP makes them views."""
        found = ((number, self.numbers.get(number)) for number in ids)
        return [(number, tensor) for number, tensor in found if tensor is not None and tensor.is_leaf]
