"""The common part of all trainers' callbacks: watches a run from start to end, then reports."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

from gradgate.checker._watch import Watching, raise_for, watch
from gradgate.checker.reports import Report, checked_path, show

RaiseOn = Literal["warning", "error"] | None


class Watched:
    """Watches one run after another, each from :meth:`begin` to :meth:`end`."""

    def __init__(
        self,
        select: str | Iterable[str],
        ignore: str | Iterable[str],
        raise_on: RaiseOn,
        output: str | Path | None,
        show: bool,
        where: str,
    ) -> None:
        select, ignore = (names if isinstance(names, str) else tuple(names) for names in (select, ignore))
        self._new = partial(watch, select=select, ignore=ignore, raise_on=raise_on)
        self._new()  # raises for an unknown name now, not when the training begins
        self._raise_on = raise_on
        # Absolute, because the training may change the working directory.
        self._output = None if output is None else checked_path(output, where=where).absolute()
        self._show = show
        self._watching: Watching | None = None
        self._report: Report | None = None

    @property
    def report(self) -> Report | None:
        """The report of the current or last run; None before the first run."""
        return self._report if self._watching is None else self._watching.report

    def __repr__(self) -> str:
        return (
            "watching" if self._watching is not None else repr(self._report) if self._report else "no run yet"
        )

    def begin(self) -> None:
        """Start watching. The previous run must have ended."""
        self._watching = self._new().start()

    def end(self, how: Literal["finished", "failed"], *, first_rank: bool) -> None:
        """Stop watching. The first rank writes and prints the report. Does nothing if no run is being watched.

        Raises:
            FindingError: a finding is at least as severe as ``raise_on``, and the run itself did not fail.
        """
        if self._watching is None:
            return
        watching, self._watching = self._watching, None
        self._report = watching._end(how)
        if first_rank and self._output is not None:
            self._report.save(self._output)
        if first_rank and self._show:
            show(self._report, sys.stdout)
        if how == "finished":
            raise_for(self._report, self._raise_on)


class WatchingCallback:
    """The options and report of all trainers' callbacks. Subclasses detect when a run begins and ends."""

    def __init__(
        self,
        *,
        select: str | Iterable[str] = (),
        ignore: str | Iterable[str] = (),
        raise_on: RaiseOn = None,
        output: str | Path | None = None,
        show: bool = True,
    ) -> None:
        super().__init__()
        self._watched = Watched(select, ignore, raise_on, output, show, type(self).__name__)

    @property
    def report(self) -> Report | None:
        """The report of the current or last run; None before the first run."""
        return self._watched.report

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._watched!r})"
