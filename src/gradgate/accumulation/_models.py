"""The modules that an accumulator was given as ``model=``."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from gradgate.errors import OptionError

Model: TypeAlias = "nn.Module | Sequence[nn.Module]"
"""A module, wrapped or not, or several."""

in_use: weakref.WeakSet[Models] = weakref.WeakSet()
"""The models of all accumulators. Another network that runs in a window may synchronise too, and is found here."""

_WRAPPERS = ("module.", "_orig_mod.")  # what DDP and torch.compile put before a path


class Models:
    """What a window has to know beside parameters: wrappers, batch norms, buffers, and names for messages.

    Only what was given is looked at. A search through the process would miss objects that ``gc.freeze()`` hides,
    and find modules that belong to somebody else.

    Args:
        model: as the caller gave it; None where it was left out.
        verb: whose argument it is, for the message.

    Attributes:
        given: as the caller gave it.
        roots: the modules themselves.

    Raises:
        OptionError: something else than modules was given.
    """

    def __init__(self, model: Model | None, verb: str) -> None:
        self._verb = verb
        self.given = model
        self.roots: tuple[nn.Module, ...] = ()
        self.replace(model)

    def replace(self, model: Model | None) -> None:
        """Take another model in place of the one that was given: one that was wrapped again, say."""
        roots: tuple[Any, ...] = (
            () if model is None else (model,) if isinstance(model, nn.Module) else tuple(model)
        )
        for root in roots:
            if not isinstance(root, nn.Module):
                raise OptionError(
                    f"{self._verb}: model holds a {type(root).__name__}. Pass the module that the loop calls (a "
                    "wrapper such as DistributedDataParallel included), or several in a list: "
                    "model=[generator, head]."
                )
        self.given, self.roots = model, roots

    def __bool__(self) -> bool:
        return bool(self.roots)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter({id(module): module for root in self.roots for module in root.modules()}.values())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield every parameter of the modules; one that is shared comes more than once."""
        return (parameter for root in self.roots for parameter in root.parameters())

    def parameter_name(self, parameter: Tensor) -> str | None:
        """Return a parameter's path, or None if no module holds it."""
        for root in self.roots:
            for path, candidate in root.named_parameters():
                if candidate is parameter:
                    return self._label(root, path)
        return None

    def name(self, module: nn.Module) -> str:
        """Name a module by its kind and its path."""
        kind = type(module).__name__
        for root in self.roots:
            for path, candidate in root.named_modules():
                if candidate is module and path:
                    return f"{kind} '{self._label(root, path)}'"
        return kind

    def _label(self, root: nn.Module, path: str) -> str:
        for prefix in _WRAPPERS:
            path = path.removeprefix(prefix)
        return path if len(self.roots) == 1 else f"{type(root).__name__}.{path}"
