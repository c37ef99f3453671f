"""Collects the values of each key, and unites sets of parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import chain
from typing import TypeVar

from gradgate.events import Ids

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in order. Reading another key gives an empty list."""
    found: dict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


def union(sets: Iterable[Iterable[int]]) -> Ids:
    """Return the parameters in any of these sets."""
    return frozenset(chain.from_iterable(sets))
