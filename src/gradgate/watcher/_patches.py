"""Replace attributes of torch's classes and modules, and put them back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """Attributes that were replaced, in order, to be put back in the opposite one.

    A class that inherits an attribute gets it back by deleting, so that nothing is left behind.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

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

    def undo(self) -> None:
        """Put everything back that nobody has replaced again since."""
        while self._replaced:
            owner, name, old, new = self._replaced.pop()
            if vars(owner).get(name) is not new:
                continue  # somebody else's replacement stands on ours: taking it away would break theirs
            if old is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
