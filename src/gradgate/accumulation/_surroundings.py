"""What a forward pass changes beside gradients: noted before a window, and put back before it is replayed."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from gradgate.accumulation._at_rest import LARGE_BYTES, AtRest
from gradgate.errors import BudgetError

_OF_MODULES = ("training", "_parameters", "_buffers", "_modules")
_HOOKS = frozenset(vars(nn.Module())) - {*_OF_MODULES}
_WRAPPERS = (
    DistributedDataParallel,
    DataParallel,
)  # their own state belongs to engines that are not put back


class Surroundings:
    """The state of modules and random generators; to be put back.

    Noted is what modules reach: parameters, buffers and other tensors, numbers and containers in attributes, also
    in modules, dataclasses and namespaces that attributes hold. Other objects are not looked into.

    Args:
        modules: whose state it is.
        owned: parameters that are not copied: a window does not change them.
        at_rest: what earlier windows have shown not to change; it is not copied either.
    """

    def __init__(
        self, modules: Iterable[nn.Module], owned: Iterable[Tensor] = (), at_rest: AtRest | None = None
    ) -> None:
        self._owned = {id(tensor) for tensor in owned}
        self._at_rest = AtRest() if at_rest is None else at_rest
        self._seen: set[int] = set()
        self._undo: list[Callable[[], None]] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._resting: list[tuple[str, Tensor]] = []
        for module in modules:
            self._note(module, type(module).__name__)
        self._undo += _random_states()

    def restore(self) -> None:
        """Put all of it back.

        Raises:
            BudgetError: something has changed that was not copied.
        """
        changed = [name for name, tensor in self._resting if self._at_rest.changed(tensor)]
        if changed:
            self._at_rest.forget(tensor for _, tensor in self._resting)
            raise BudgetError(
                "step: memory ran out, and the window cannot be replayed: the forward pass has changed "
                f"{', '.join(changed)}, which was not copied before it, as no earlier window had changed it. "
                "Nothing was stepped; what the forward pass changed stays changed. Load a checkpoint, and take "
                "smaller micro-batches."
            )
        for undo in reversed(self._undo):
            undo()
        for tensor, copied in self._copies:
            _put_back(tensor, copied)

    def settle(self) -> None:
        """Learn, after a window, which tensors need no copy in the next ones."""
        self._at_rest.learn(self._copies)

    def _note(self, value: Any, name: str) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            self._note_tensor(value, name)
        elif isinstance(value, nn.Module):
            self._note_attributes(value, name, _OF_MODULES if isinstance(value, _WRAPPERS) else None)
        elif isinstance(value, (list, deque, dict, set)):
            self._undo.append(_undo_container(value))
            items = list(value.items()) if isinstance(value, dict) else [("...", item) for item in value]
            for key, item in items:
                self._note(item, f"{name}.{key}")
        elif isinstance(value, tuple):
            for item in value:
                self._note(item, name)
        elif isinstance(value, torch.Generator):
            self._undo.append(partial(_set_state, value, value.get_state()))
        elif isinstance(value, SimpleNamespace) or (
            dataclasses.is_dataclass(value) and hasattr(value, "__dict__") and not isinstance(value, type)
        ):
            self._note_attributes(value, name, None)

    def _note_attributes(self, value: Any, name: str, only: tuple[str, ...] | None) -> None:
        attributes = vars(value)
        saved = {
            key: item
            for key, item in attributes.items()
            if (key not in _HOOKS if only is None else key in only)
        }

        def undo() -> None:
            for key in [key for key in attributes if key not in saved and only is None and key not in _HOOKS]:
                del attributes[key]
            attributes.update(saved)

        self._undo.append(undo)
        for key, item in saved.items():
            self._note(item, name if key.startswith("_") else f"{name}.{key}")

    def _note_tensor(self, tensor: Tensor, name: str) -> None:
        if id(tensor) in self._owned or is_lazy(tensor) or tensor.is_meta:
            return
        if self._at_rest.holds(tensor):
            self._resting.append((name, tensor))
            return
        large = tensor.nbytes > LARGE_BYTES if tensor.layout == torch.strided else False
        detached = tensor.detach()
        # Large copies stand in host memory: there is none to spare on the device.
        self._copies.append((tensor, detached.to("cpu", copy=True) if large else detached.clone()))


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def _set_state(generator: torch.Generator, state: Tensor) -> None:
    generator.set_state(state)


def _undo_container(value: Any) -> Callable[[], None]:
    saved = value.copy()

    def undo() -> None:
        value.clear()
        if isinstance(value, (list, deque)):
            value.extend(saved)
        else:
            value.update(saved)

    return undo


@torch.no_grad()
def _put_back(tensor: Tensor, copied: Tensor) -> None:
    """Write a copy back where it differs; what has not changed may not even be writable."""
    if tensor.shape != copied.shape or tensor.dtype != copied.dtype:
        tensor.data = copied.to(tensor.device)
        return
    same = tensor.layout == torch.strided and torch.equal(tensor.detach().to(copied.device), copied)
    if not same:
        with torch.inference_mode(tensor.is_inference()):
            tensor.detach().copy_(copied)


def _random_states() -> list[Callable[[], None]]:
    """Return what puts the generators of torch, Python and numpy back."""
    cpu, python = torch.get_rng_state(), random.getstate()
    undo: list[Callable[[], None]] = [lambda: torch.set_rng_state(cpu), lambda: random.setstate(python)]
    if torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        undo.append(lambda: torch.cuda.set_rng_state_all(devices))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        drawn = numpy.get_state()
        undo.append(lambda: numpy.set_state(drawn))
    return undo
