"""The live modules, and what each of them holds itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from gradgate.checker.recording._fields import fields_of, is_a
from gradgate.checker.recording._patches import Patches


class Modules:
    """The modules that are alive, as far as they were met. They are held weakly.

    A module is met when it is created, copied or given a parameter during the watch, and when a variable of a
    running function leads to it. The process is not searched: what no variable leads to, the loop does not train.
    """

    def __init__(self) -> None:
        # By identity: a user's class may define equality, with attributes that its constructor has not set yet.
        self._alive: dict[int, weakref.ref[nn.Module]] = {}

    def install(self, patches: Patches) -> None:
        """Watch how modules are created, also while torch compiles or uses fake tensors."""
        patches.wrap(nn.Module, "__init__", self._called)
        patches.wrap(nn.Module, "__setstate__", self._called)  # copy.deepcopy and pickle
        patches.wrap(nn.Module, "register_parameter", self._called)

    def _called(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        self._meet(module)
        return result

    def _meet(self, module: nn.Module) -> None:
        key, alive = id(module), self._alive
        if key not in alive or alive[key]() is not module:
            alive[key] = weakref.ref(module, lambda _: alive.pop(key, None))

    def meet(self, module: nn.Module) -> None:
        """Note a module that a variable holds, and all that are in it."""
        for inner in modules_in(module):
            self._meet(inner)

    def alive(self) -> list[nn.Module]:
        """Return every module that was met and is alive."""
        modules = (ref() for ref in list(self._alive.values()))
        return [module for module in modules if module is not None]


# A user's class may define parameters(), children() and the like: none of it is called. A module whose
# constructor is still running may not have its dictionaries yet.


def _held(module: nn.Module, name: str) -> list[tuple[str, Any]]:
    held = fields_of(module).get(name)
    if is_a(held, dict):
        return [(key, value) for key, value in dict.items(held) if value is not None]  # type: ignore[arg-type]
    if type(held).__module__.startswith("torch.jit"):
        return [(key, value) for key, value in held.items() if value is not None]  # type: ignore[union-attr]
    return []


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a module holds itself."""
    return [parameter for _, parameter in _held(module, "_parameters")]


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a module holds itself, by name."""
    return dict(_held(module, "_buffers"))


def children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that a module holds itself, with their names."""
    return _held(module, "_modules")


def modules_in(module: nn.Module) -> list[nn.Module]:
    """Return a module and all that are in it, each once."""
    found = {id(module): module}
    waiting = [module]
    for each in waiting:  # grows during the loop
        for _, child in children_of(each):
            if id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return waiting


def parameters_in(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module and of all that are in it, each once."""
    several = [each for inner in modules_in(module) for each in own_parameters(inner)]
    return list({id(each): each for each in several}.values())


def named_parameters(
    module: nn.Module, prefix: str = "", _outer: tuple[int, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a module and of all that are in it, by every name that leads to them."""
    for name, parameter in _held(module, "_parameters"):
        yield prefix + name, parameter
    outer = (*_outer, id(module))
    for name, child in children_of(module):
        if id(child) not in outer:
            yield from named_parameters(child, f"{prefix}{name}.", outer)
