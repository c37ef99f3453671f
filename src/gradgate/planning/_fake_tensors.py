"""Makes fake tensors, and finds those that a pass leaves behind."""

from __future__ import annotations

import gc
import sys
import weakref
from types import FrameType, FunctionType, GeneratorType
from typing import Any

from torch import Tensor

from gradgate.torch_compat import as_torch_itself, fake_tensors

_LEVELS = 4  # search depth: containers between a cache and its tensor


class FakePassError(Exception):
    """Fake tensors cannot run a loss function. The message says why."""


class FakeTensors:
    """Makes fake tensors, which have shapes but no values, from real ones.

    Keeps them alive, because torch only refers to them weakly, and a second fake of a tensor would count as new
    memory.
    """

    def __init__(self) -> None:
        as_torch_itself.require()  # its replacement would compute on fake tensors
        self.kind, mode = fake_tensors()
        self.mode = mode(allow_non_fake_inputs=True)
        self._created: list[weakref.ref[Tensor]] = []
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the fake of a real tensor."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self.mode.from_tensor(tensor)
        return self._known[id(tensor)][1]

    def of_input(self, tensor: Tensor) -> Tensor:
        """Return a fake for a tensor of a micro-batch, without keeping it. 0-dimensional tensors stay real."""
        if not tensor.dim():
            return tensor
        fake: Tensor = tensor if isinstance(tensor, self.kind) else self.mode.from_tensor(tensor)
        self.note_created(fake)
        return fake

    def note_created(self, tensor: Tensor) -> None:
        """Register a fake that must not survive its pass."""
        self._created.append(weakref.ref(tensor))

    def take_leaked(self) -> list[Tensor]:
        """Return the fakes that are still referenced after their passes; each is returned once."""
        if self._alive():
            gc.collect()  # graphs of Python autograd functions can be in reference cycles
        leaked = self._alive()
        self._created.clear()
        return leaked

    def _alive(self) -> list[Tensor]:
        kept = {id(fake) for _, fake in self._known.values()}
        return [tensor for ref in self._created if (tensor := ref()) is not None and id(tensor) not in kept]


def holder_name(value: Any, ours: set[int]) -> str:
    """Return the path to an object from the nearest module, class or instance: ``"masks.CACHE[128]"``.

    The caller must not hold the object in a local list or a closure: these would be found as holders.
    """
    path = ""
    for _ in range(_LEVELS):
        ours = ours | {id(value)}
        referrers = _referrers(value, ours)
        holder = min(referrers, key=lambda held: not isinstance(held, (dict, list, tuple, set)), default=None)
        del referrers
        if not isinstance(holder, (dict, list, tuple, set)):
            return f"{'an object' if holder is None else f'a {type(holder).__qualname__}'}{path}"
        key = _key_of(value, holder)
        if _is_module_namespace(holder):
            return f"{holder['__name__']}.{key}{path}"  # type: ignore[index,call-overload]
        owners = gc.get_referrers(holder)
        owner = next((owner for owner in owners if getattr(owner, "__dict__", 0) is holder), None)
        del owners
        if owner is not None:
            return f"a {type(owner).__qualname__}'s {key}{path}"
        path, value = f"[{key!r}]{path}", holder
    return f"a {type(value).__qualname__}{path}"


def _referrers(value: Any, ours: set[int]) -> list[Any]:
    referrers = gc.get_referrers(value)
    skipped = ours | {id(referrers)}
    running = (FrameType, FunctionType, GeneratorType)
    return [holder for holder in referrers if id(holder) not in skipped and not isinstance(holder, running)]


def _key_of(value: Any, holder: Any) -> Any:
    # A function of its own: the generator makes `value` a cell, which would be found as a holder.
    pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
    return next((key for key, held in pairs if held is value), "?")


def _is_module_namespace(value: Any) -> bool:
    name = value.get("__name__") if isinstance(value, dict) else None
    return isinstance(name, str) and name in sys.modules and vars(sys.modules[name]) is value
