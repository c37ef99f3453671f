"""Replace attributes of torch's classes and modules, and put them back."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

_MISSING = object()
_beneath: dict[int, tuple[Any, Any]] = {}  # a replacement that could not be taken away: what it replaced


class Patches:
    """Attributes that were replaced, in order, to be put back in the opposite one.

    A class that inherits an attribute gets it back by deleting, so that nothing is left behind.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._functions: dict[int, Any] = {}  # by identity, while they are held: what stands in their place

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name``, and remember what stood there itself (not in a base class)."""
        self._replaced.append((owner, name, vars(owner).get(name, _MISSING), new))
        setattr(owner, name, new)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace a function by ``around(original, *arguments)``, which looks the same from outside."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        self.replace(owner, name, wrapper)
        if isinstance(owner, types.ModuleType):
            self._functions[id(original)] = wrapper

    def reach_imported(self) -> None:
        """Replace functions of modules also where they were imported by name, before: all in one search."""
        wanted = self._functions.keys()
        for name, module in list(sys.modules.items()):
            if not isinstance(module, types.ModuleType) or name.partition(".")[0] in ("torch", "gradgate"):
                continue
            # Most modules import none of them, and this says so ten times as fast as a loop.
            if not wanted.isdisjoint(map(id, list(vars(module).values()))):
                for known_as, value in list(vars(module).items()):
                    if id(value) in self._functions:
                        self.replace(module, known_as, self._functions[id(value)])
        self._functions.clear()

    def undo(self) -> None:
        """Put everything back that nobody has replaced again since."""
        while self._replaced:
            owner, name, old, new = self._replaced.pop()
            if vars(owner).get(name) is not new:
                # Somebody else's replacement stands on ours: to take it away would break theirs. If that is
                # another watcher's, it leaves behind what lies beneath both.
                _beneath[id(new)] = (new, old)
                continue
            while id(old) in _beneath:
                _, old = _beneath.pop(id(old))
            if old is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
