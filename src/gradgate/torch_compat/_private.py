"""A private name: tried out once, with what is used where it is lost."""

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
    """A function made of private names.

    Attributes:
        names: the names, for messages.
        cannot: what gradgate cannot do without them, to follow "gradgate cannot".
        find: returns the function; raises where a name is gone.
        instead: the function that is used then; None where nothing else gives the same result: a call is refused.
        works: tries it out; raises or returns something false where it does not do what it did.
        rules: of the checker, which then miss mistakes.
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
        """The function, or what is used instead of it. What runs at every backward pass calls it by this name."""
        try:
            found = self.find()
            return found if self.works(found) else self.otherwise
        except Exception:  # noqa: BLE001  (whatever a name that has changed raises, it is of no use)
            return self.otherwise

    @cached_property
    def otherwise(self) -> Callable[P, R]:
        """What is used where it is lost."""
        return self._refuse if self.instead is None else self.instead

    @property
    def lost(self) -> bool:
        """Say whether it does not work with this version of torch and Python."""
        return self.use is self.otherwise

    def require(self) -> None:
        """Raise UpdateError where it is lost."""
        if self.lost:
            self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UpdateError(
            f"{self.loss}. Use versions that gradgate is tested with: docs/limits.md names them."
        )

    @property
    def loss(self) -> str:
        """What is lost, and why."""
        versions = f"torch {torch().__version__} and Python {sys.version_info[0]}.{sys.version_info[1]}"
        return f"gradgate cannot {self.cannot} with {versions} ({self.names} is gone or works otherwise)"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.use(*args, **kwargs)


def unseen() -> tuple[str, ...]:
    """Return what the checker cannot see with this version of torch, in sentences that name the rules."""
    entries = [one for one in _entries if one.rules and one.lost]
    return tuple(f"{one.loss}: {', '.join(one.rules)} may miss mistakes." for one in entries)


def torch() -> Any:
    import torch  # the command line looks at a script before it imports torch

    return torch
