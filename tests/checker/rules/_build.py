"""Builds event logs by hand, a training loop in a few words, so that rules are judged without torch."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

# private: the caches of sources, which every story empties because all have one file name
from gradgate.checker.analysis import _scopes, _source
from gradgate.checker.rules import Finding, check
from gradgate.events import (
    Backward,
    Cleared,
    Clipped,
    Ended,
    Event,
    Frame,
    Group,
    Ids,
    Log,
    OptimizerMade,
    Parameter,
    Site,
    Stepped,
    Term,
    Written,
)

FILE = "train.py"
KEYS = count(1000)


def site(line: int, function: str = "<module>") -> Site:
    """A line of the one file."""
    return (Frame(FILE, line, function),)


def mean(items: float, *factors: tuple[str, float], line: int = 1, **facts: Any) -> Term:
    """A mean over items, with what it is multiplied and divided by on its way to the root."""
    known = tuple((op, number, site(line)) for op, number in factors)
    facts = {"key": -1, "sizes": (int(items),), **facts}
    return Term(kind="mean", factors=known, items=items, site=site(line), **facts)


def total(size: int, *factors: tuple[str, float], line: int = 1, **facts: Any) -> Term:
    """A sum over items."""
    known = tuple((op, number, site(line)) for op, number in factors)
    facts = {"key": -1, "sizes": (size,), **facts}
    return Term(kind="sum", factors=known, site=site(line), **facts)


class Story:
    """What happened in a run, in order. Parameters are known by their names.

    ``source`` is the text of the file that all lines are of; without it rules find no source to read.
    """

    def __init__(self, *parameters: str, source: str = "") -> None:
        self.names = list(parameters)
        self.facts: dict[str, dict[str, Any]] = {name: {} for name in parameters}
        self.events: list[Event] = []
        self.optimizers: dict[int, str] = {}
        lines = source.splitlines(keepends=True)
        linecache.cache[FILE] = (len(source), None, lines, FILE)
        _source.tree_of.cache_clear()
        for read in (
            _source.path_to,
            _scopes.functions_of,
            _scopes.scopes_of,
            _scopes.imported,
        ):
            read.cache_clear()

    def ids(self, names: str | Iterable[str] | None) -> Ids:
        if names is None:
            return frozenset(range(len(self.names)))
        return frozenset(
            self.names.index(name) for name in (names.split() if isinstance(names, str) else names)
        )

    def add(self, *events: Event) -> Story:
        self.events += events
        return self

    def optimizer(
        self,
        name: str = "optimizer",
        of: str | None = None,
        *,
        line: int = 1,
        kind: str = "SGD",
        **group: Any,
    ) -> Story:
        number = len(self.optimizers)
        self.optimizers[number] = name
        group = {"lr": 0.1, **group}
        return self.add(OptimizerMade(site(line), number, kind, (Group(self.ids(of), **group),)))

    def _number(self, optimizer: str) -> int:
        return next(number for number, name in self.optimizers.items() if name == optimizer)

    def backward(self, line: int, *terms: Term, to: str | None = None, **facts: Any) -> Story:
        # Each call has nodes of its own, unless a test says that they are the same.
        own = [replace(term, key=next(KEYS)) if term.key == -1 else term for term in terms]
        return self.add(Backward(site(line), self.ids(to), terms=tuple(own), **facts))

    def step(
        self, line: int, optimizer: str = "optimizer", *, used: str | None = None, **facts: Any
    ) -> Story:
        number = self._number(optimizer)
        made = [
            event for event in self.events if isinstance(event, OptimizerMade) and event.optimizer == number
        ]
        held = frozenset().union(*(group.parameters for event in made for group in event.groups))
        ids = held if used is None else self.ids(used)
        return self.add(Stepped(site(line), number, ids, **{"moved": ids, "lr": (0.1,), **facts}))

    def clear(self, line: int, of: str | None = None, *, full: str | None = None) -> Story:
        ids = self.ids(of)
        return self.add(Cleared(site(line), ids, ids if full is None else self.ids(full)))

    def clip(self, line: int, of: str | None = None, *, norm: float = 2.0, limit: float = 1.0) -> Story:
        ids = self.ids(of)
        return self.add(Clipped(site(line), ids, ids, len(ids), norm, limit))

    def write(self, line: int, of: str | None = None, **facts: Any) -> Story:
        facts = {"target": "gradient", "op": "div_", **facts}
        return self.add(Written(site(line), parameters=self.ids(of), **facts))

    def log(self, how: Any = "finished", **facts: Any) -> Log:
        parameters = {
            number: Parameter(
                **{
                    "id": number,
                    "name": name,
                    "root": name.split(".")[0],
                    "shape": (2,),
                    "nbytes": 8,
                    **self.facts[name],
                }
            )
            for number, name in enumerate(self.names)
        }
        steps = sum(isinstance(event, Stepped) for event in self.events)
        events = (*self.events, Ended((), how))
        return Log(FILE, parameters, self.optimizers, events, steps=steps, **facts)

    def judged(self, *codes: str, how: Any = "finished") -> list[Finding]:
        """Return the findings, of these rules only where some are named."""
        return [
            finding for finding in check(self.log(how), strict=True) if not codes or finding.code in codes
        ]


def said(findings: Sequence[Finding]) -> list[str]:
    """Return findings as short text: place, code, severity and message."""
    return [f"{one.file}:{one.line}: {one.code} {one.severity}: {one.message}" for one in findings]
