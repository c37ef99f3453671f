"""Store the events of a run, and number the user's objects without keeping them alive."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.checker.recording._patches import Patches
from gradgate.checker.recording._user_objects import modules_in
from gradgate.events import Event, Gap, Ids, Parameter, Site
from gradgate.torch_compat import is_dtensor

T = TypeVar("T")
V = TypeVar("V")

_HEAD, _TAIL = 20_000, 10_000  # in a longer run, only this many first and last events are kept
_RECENT = 256  # only events this recent can be replaced


class EventBuffer:
    """The first and last events of a run. A :class:`Gap` between them holds the number of missing events."""

    def __init__(self, head: int = _HEAD, tail: int = _TAIL) -> None:
        self._first: list[Event] = []
        self._last: deque[Event] = deque(maxlen=tail)
        self._head = head
        self.count = 0

    def add(self, event: Event) -> None:
        """Append an event."""
        self.count += 1
        if len(self._first) < self._head:
            self._first.append(event)
        else:
            self._last.append(event)

    def replace(self, event: Event, by: Event | None) -> None:
        """Replace a recent event with another one, or remove it."""
        for kept in (self._last, self._first):
            for place in range(len(kept) - 1, max(len(kept) - _RECENT, 0) - 1, -1):
                if kept[place] is event:
                    if by is None:
                        del kept[place]
                        self.count -= 1
                    else:
                        kept[place] = by
                    return

    def events(self) -> tuple[Event, ...]:
        """Return the stored events in order."""
        missing = self.count - len(self._first) - len(self._last)
        gap = (Gap((), missing),) if missing else ()
        return (*self._first, *gap, *self._last)


class ByIdentity(Generic[T, V]):
    """Maps objects, compared by identity and not kept alive, to values.

    A user's ``__eq__`` and ``__hash__`` may read attributes that the constructor has not set yet.
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def known(self, thing: T) -> V | None:
        """Return the object's value, or None if the object is unknown."""
        entry = self.entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def pop(self, thing: T) -> V | None:
        """Forget the object. Return its value, or None if the object is unknown."""
        value = self.known(thing)
        if value is not None:
            del self.entries[id(thing)]
        return value

    def add(self, thing: T, value: V) -> weakref.ref[Any]:
        """Set the object's value."""
        key, entries = id(thing), self.entries
        ref = weakref.ref(thing, lambda _: entries.pop(key, None))
        entries[key] = ref, value
        return ref


class Numbers(ByIdentity[T, int]):
    """Numbers objects from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: dict[int, weakref.ref[Any]] = {}
        self._next = 0

    def number(self, thing: T) -> int:
        """Return the object's number. A new object gets the next one."""
        number = self.known(thing)
        if number is None:
            number, self._next = self._next, self._next + 1
            self.refs[number] = self.add(thing, number)
        return number

    def get(self, number: int) -> T | None:
        """Return the object, or None if it is gone."""
        ref = self.refs.get(number)
        return ref() if ref is not None else None

    def __len__(self) -> int:
        """Return how many objects were numbered."""
        return self._next

    def alive(self, numbers: Iterable[int] | None = None) -> list[tuple[int, T]]:
        """Return (number, object) for the live objects, by default for all of them."""
        refs, found = self.refs, []
        for number in list(refs if numbers is None else numbers):
            ref = refs.get(number)
            thing = None if ref is None else ref()
            if thing is None:
                refs.pop(number, None)
            else:
                found.append((number, thing))
        return found


def shape_and_bytes(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """Return a tensor's shape and size in bytes; ``()`` and 0 for an uninitialized lazy parameter."""
    if is_lazy(tensor):
        return (), 0
    return tuple(tensor.shape), tensor.numel() * tensor.element_size()


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over ranks, so that reading a value would need communication.

    FSDP frees the storage of a gathered parameter after use.
    """
    if is_dtensor(tensor):
        return True
    try:
        return tensor.numel() > 0 and tensor.untyped_storage().size() == 0
    except (RuntimeError, NotImplementedError, ValueError):  # sparse and lazy tensors have no storage
        return False


class Parameters:
    """The parameters that losses reach and optimizers hold, with a record of each."""

    def __init__(self) -> None:
        self.numbers: Numbers[Tensor] = Numbers()
        self.records: dict[int, Parameter] = {}
        self.reached: set[int] = set()  # parameters that a loss reached
        self.held: set[int] = set()  # parameters that a module held at any time
        self.owners: dict[int, set[int]] = {}  # parameter number -> numbers of the optimizers that hold it
        self.met: ByIdentity[Tensor, bool] = ByIdentity()  # plain leaves that a loss reached once
        self._origins: ByIdentity[Tensor, tuple[Site, int]] = ByIdentity()
        self._copies: ByIdentity[Tensor, bool] = ByIdentity()
        self._sets: dict[Ids, Ids] = {}

    def created(self, tensor: Tensor, site: Site, at: int) -> None:
        """Remember where a parameter was created, for its later record."""
        self._origins.add(tensor, (site, at))

    def copied(self, tensor: Tensor) -> None:
        """Remember that a parameter is a deep copy, for its later record."""
        self._copies.add(tensor, value=True)

    def number(self, tensor: Tensor) -> int:
        """Return the parameter's number. A new one gets a record."""
        known = self.numbers.known(tensor)
        if known is not None:
            return known
        number, (shape, nbytes) = self.numbers.number(tensor), shape_and_bytes(tensor)
        record = Parameter(number, "", "", shape, nbytes, trainable=tensor.requires_grad, still=True)
        record.dtype = str(tensor.dtype).removeprefix("torch.")
        record.registered = isinstance(
            tensor, nn.Parameter
        )  # Names.finish replaces this if the tensor lives until the end of the run
        record.made, record.made_at = self._origins.known(tensor) or ((), -1)
        record.copied = bool(self._copies.known(tensor))
        self.records[number] = record
        return number

    def listed(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the numbers of several parameters in order, new ones included."""
        entries, numbers = self.numbers.entries, []
        for tensor in tensors:
            entry = entries.get(id(tensor))  # `known` inlined, because this runs often
            known = entry is not None and entry[0]() is tensor
            numbers.append(entry[1] if known else self.number(tensor))  # type: ignore[index]
        return numbers

    def ids(self, tensors: Iterable[Tensor]) -> Ids:
        """Return the numbers of several parameters, new ones included."""
        return self.same(self.listed(tensors))

    def known(self, tensors: Iterable[Tensor]) -> Ids:
        """Return the numbers of those tensors that are known parameters."""
        return self.same(map(self.numbers.known, tensors))

    def same(self, ids: Iterable[int | None]) -> Ids:
        """Return the numbers without None. Equal sets are the same object, so that events share memory."""
        numbers = frozenset(ids)
        if None in numbers:
            numbers -= {None}
        return self._sets.setdefault(numbers, numbers)  # type: ignore[arg-type]

    def tensors(self, ids: Iterable[int]) -> list[tuple[int, Tensor]]:
        """Return the live parameters with these numbers. Leave out those that FSDP has turned into views."""
        return [(number, tensor) for number, tensor in self.numbers.alive(ids) if tensor.is_leaf]


class Modules(Numbers[nn.Module]):
    """The known modules, held by weak references.

    A module becomes known when the watched script creates it, copies it or gives it a parameter, or when a variable
    of a running function leads to it.
    """

    def install(self, patches: Patches) -> None:
        """Watch the creation of modules, even while torch compiles or uses fake tensors."""
        patches.wrap(nn.Module, "__init__", self._called)
        patches.wrap(nn.Module, "__setstate__", self._called)  # copy.deepcopy and pickle
        patches.wrap(nn.Module, "register_parameter", self._called)

    def _called(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        self.number(module)
        return result

    def meet(self, module: nn.Module) -> None:
        """Remember a module that a variable holds, and all modules in it."""
        for inner in modules_in(module):
            self.number(inner)
