"""A private name of torch or Python, which is tested once and replaced in versions that lack it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

from gradgate.errors import UpdateError

P = ParamSpec("P")
R = TypeVar("R")

_entries: list[Private[..., Any]] = []


@dataclass(eq=False)
class Private(Generic[P, R]):
    """A function that uses private names.

    Attributes:
        names: the names, for messages.
        cannot: completes the sentence "gradgate cannot ...", for versions without the names.
        find: returns the function, or raises if a name is missing.
        instead: the replacement. None if no other code gives the same result: a call then raises UpdateError.
        works: tests the function. Raises, or returns a false value, if the function's behavior has changed.
        rules: the checker's rules that miss mistakes without the function.
    """

    names: str
    cannot: str
    find: Callable[[], Callable[P, R]]
    instead: Callable[P, R] | None = None
    works: Callable[[Callable[P, R]], object] = lambda use: True
    rules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _entries.append(self)

    @cached_property
    def use(self) -> Callable[P, R]:
        """The function, or its replacement. Hot code calls this attribute directly, which saves a call."""
        try:
            found = self.find()
            return found if self.works(found) else self.otherwise
        except Exception:  # noqa: BLE001  (a changed name may raise anything)
            return self.otherwise

    @cached_property
    def otherwise(self) -> Callable[P, R]:
        """The replacement."""
        return self._refuse if self.instead is None else self.instead

    @property
    def lost(self) -> bool:
        """Whether this version of torch or Python lacks the function, so that the replacement is used."""
        return self.use is self.otherwise

    def require(self) -> None:
        """Raise UpdateError if the function is lost."""
        if self.lost:
            self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UpdateError(
            f"{self.loss}. Use versions that gradgate is tested with: docs/limits.md names them."
        )

    @property
    def loss(self) -> str:
        """The sentence "gradgate cannot ...", with the reason."""
        versions = f"torch {torch().__version__} and Python {sys.version_info[0]}.{sys.version_info[1]}"
        return (
            f"gradgate cannot {self.cannot} with {versions} ({self.names} is missing or behaves differently)"
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.use(*args, **kwargs)


def unseen() -> tuple[str, ...]:
    """Return sentences on what the checker cannot observe with this version of torch, and the affected rules."""
    entries = [entry for entry in _entries if entry.rules and entry.lost]
    return tuple(f"{entry.loss}: {', '.join(entry.rules)} may miss mistakes." for entry in entries)


def torch() -> Any:
    import torch  # lazily: the command line reads a script before anything imports torch

    return torch
