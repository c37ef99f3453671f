"""The live modules, and what each of them holds itself."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from torch import Tensor, nn

from gradgate.checker.recording._patches import Patches


class Modules:
    """All live modules, held weakly. Their constructors and copies are watched.

    Modules from before the watch are looked for once, when they are first asked for: a run that trains nothing is
    spared the tenth of a second. ``gc`` does not list objects that ``gc.freeze()`` has set aside. If there are any,
    modules may be missing, and :attr:`complete` is False. docs/limits.md says what that costs.
    """

    def __init__(self) -> None:
        # By identity: a user's class may define equality, with attributes that its constructor has not set yet.
        self._alive: dict[int, weakref.ref[nn.Module]] = {}
        self._looked = False
        self.complete = True

    def install(self, patches: Patches) -> None:
        """Watch how modules are created, also while torch compiles or uses fake tensors."""
        patches.wrap(nn.Module, "__init__", self._created)
        patches.wrap(nn.Module, "__setstate__", self._created)  # copy.deepcopy and pickle

    def _created(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
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
            self.complete = not gc.get_freeze_count()
            for thing in gc.get_objects():
                if _is_module(thing):
                    self._add(thing)
        modules = (ref() for ref in list(self._alive.values()))
        return [module for module in modules if module is not None]


# A module whose constructor is still running may not have its dictionaries yet.


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a module holds itself."""
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
    # issubclass of the type: isinstance would read __class__, which some objects compute.
    try:
        return issubclass(type(thing), nn.Module)
    except (TypeError, ReferenceError):
        return False
