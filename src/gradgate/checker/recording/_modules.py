"""Every module that is alive, kept as they come about: to look through all objects takes a tenth of a second."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from torch import Tensor, nn

from gradgate.checker.recording._patches import Patches


class Modules:
    """The live modules, held weakly. Constructors and copies are watched; what was there is looked for once.

    That is done when they are first asked for: a run that trains nothing is spared it.
    """

    def __init__(self) -> None:
        # By identity: a class of the user's own may say what is equal, and ask for it what it has not set yet.
        self._alive: dict[int, weakref.ref[nn.Module]] = {}
        self._looked = False

    def install(self, patches: Patches) -> None:
        """Stand around the ways in which a module comes about."""
        patches.wrap(nn.Module, "__init__", self._around)
        patches.wrap(nn.Module, "__setstate__", self._around)  # copy.deepcopy and pickle

    def _around(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        self._add(module)
        return result

    def _add(self, module: nn.Module) -> None:
        key, alive = id(module), self._alive
        alive[key] = weakref.ref(module, lambda _: alive.pop(key, None))

    def alive(self) -> list[nn.Module]:
        """Return every module that is alive."""
        if not self._looked:
            self._looked = True
            for thing in gc.get_objects():
                if _is_module(thing):
                    self._add(thing)
        modules = (ref() for ref in list(self._alive.values()))
        return [module for module in modules if module is not None]


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a module holds itself; one that is still being made holds none."""
    try:
        return list(nn.Module.parameters(module, recurse=False))
    except AttributeError:
        return []


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a module holds itself, by name."""
    try:
        return dict(nn.Module.named_buffers(module, recurse=False))
    except AttributeError:
        return {}


def children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that a module holds itself, with their names."""
    try:
        return list(nn.Module.named_children(module))
    except AttributeError:
        return []


def _is_module(thing: Any) -> bool:
    try:
        return issubclass(type(thing), nn.Module)
    except (TypeError, ReferenceError):
        return False
