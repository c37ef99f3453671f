"""Functions that are called at certain moments, and a refusal of steps by hand within a window."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradgate.errors import UpdateError

if TYPE_CHECKING:
    from gradgate.accumulation._accumulator import Accumulator

Hook = TypeVar("Hook", bound=Callable[..., object])


class Hooks(Generic[Hook]):
    """Functions, called in the order in which they came."""

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, Hook] = OrderedDict()

    def add(self, hook: Hook) -> RemovableHandle:
        """Have a function called from now on; the handle takes it away again."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def __call__(self, *given: Any) -> None:
        for hook in tuple(self._hooks.values()):  # one may take itself away
            hook(*given)

    def __len__(self) -> int:
        return len(self._hooks)


class NoStepInside:
    """Refuses a step by hand while a window of the accumulator is open. Holds the accumulator weakly."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = weakref.ref(accumulator)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        accumulator = self._accumulator()
        if accumulator is not None and accumulator._open_update is not None and not accumulator._stepping:
            raise UpdateError(
                "update: optimizer.step() was called inside the block; it would step on an unfinished sum. "
                "Leave it out: leaving the block steps once."
            )
