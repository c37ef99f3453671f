"""The modules of this process, found without being told: an accumulator is given an optimizer, not a model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator

from torch import Tensor, nn


class LiveModules:
    """Every module that is alive, looked for once, when first asked for.

    The look goes through the objects that the garbage collector tracks and takes some 50 ms. Hooks on all
    modules would find them too, but cost in each forward pass and make torch.compile compile twice.
    """

    def __init__(self) -> None:
        self._references: list[weakref.ref[nn.Module]] | None = None
        self._parameters: set[int] = set()

    def look_for(self, parameters: Iterable[Tensor]) -> None:
        """Look anew if one of the parameters belongs to no module that is known: a head was replaced, say."""
        if self._references is not None and any(
            id(parameter) not in self._parameters for parameter in parameters
        ):
            self._references = None
            self._parameters |= {
                id(parameter) for parameter in parameters
            }  # bare ones are not looked for twice

    def __iter__(self) -> Iterator[nn.Module]:
        if self._references is None:
            kinds = set(_with_subclasses(nn.Module))
            self._references = [weakref.ref(thing) for thing in gc.get_objects() if type(thing) in kinds]
            self._parameters |= {id(p) for module in self for p in module.parameters(recurse=False)}
        return (module for module in (reference() for reference in self._references) if module is not None)

    def around(self, parameters: Iterable[Tensor]) -> list[nn.Module]:
        """Return the modules of every tree that holds one of the parameters."""
        ours = {id(parameter) for parameter in parameters}
        roots = [root for root in self if any(id(parameter) in ours for parameter in root.parameters())]
        return list({id(module): module for root in roots for module in root.modules()}.values())

    def parameter_name(self, parameter: Tensor) -> str | None:
        """Return a parameter's path in the largest module that holds it, or None if none does."""
        paths = [path for root in self for path, one in root.named_parameters() if one is parameter]
        return max(paths, key=lambda path: path.count("."), default=None)

    def name(self, module: nn.Module) -> str:
        """Name a module by its kind and its path in the largest module that holds it."""
        paths = [path for root in self for path, child in root.named_modules() if child is module and path]
        kind = type(module).__name__
        return f"{kind} '{max(paths, key=lambda path: path.count('.'))}'" if paths else kind


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    below: type
    for below in type.__subclasses__(kind):
        yield from _with_subclasses(below)
