"""Copies of what is frozen are made as if it were not: `copy.deepcopy` and `pickle` see it as it was before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

# Both are looked up on the object itself before its class.
VERBS = ("__deepcopy__", "__reduce_ex__")


def copied_within(thing: Any, ordinary: Callable[[], AbstractContextManager[None]]) -> dict[str, Any]:
    """Return attributes for an object that have deep copies and pickles of it begin within ``ordinary()``."""

    def method(verb: str) -> Callable[..., Any]:
        def copied(*args: Any) -> Any:
            with ordinary():
                return getattr(type(thing), verb)(thing, *args)

        return copied

    return {verb: method(verb) for verb in VERBS if hasattr(type(thing), verb)}


@contextmanager
def with_attributes(thing: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Give an object other attributes meanwhile. What the block keeps of them stays as it is afterwards."""
    own = vars(thing)
    object.__setattr__(thing, "__dict__", attributes)
    try:
        yield
    finally:
        object.__setattr__(thing, "__dict__", own)
