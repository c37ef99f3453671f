"""What the callbacks of all trainers do: watch a run from its start to its end, then tell what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from gradgate.checker._watch import Watching, raise_for, watch
from gradgate.checker.reports import Report, checked_path, show

RaiseOn = Literal["warning", "error"] | None


class Watched:
    """One run after another, each watched from :meth:`begin` to :meth:`end`."""

    def __init__(
        self,
        *,
        select: str | Iterable[str],
        ignore: str | Iterable[str],
        raise_on: RaiseOn,
        output: str | Path | None,
        show: bool,
    ) -> None:
        self._select = select if isinstance(select, str) else tuple(select)
        self._ignore = ignore if isinstance(ignore, str) else tuple(ignore)
        self._raise_on = raise_on
        self._new()  # what is misspelt is said now, not when the training begins
        # Absolute: the training may change the folder.
        self._output = None if output is None else checked_path(output, where="WatchGradients").absolute()
        self._show = show
        self._watching: Watching | None = None
        self._report: Report | None = None

    def _new(self) -> Watching:
        return watch(select=self._select, ignore=self._ignore, raise_on=self._raise_on)

    @property
    def running(self) -> bool:
        """Whether a run is being watched."""
        return self._watching is not None

    @property
    def report(self) -> Report | None:
        """What was found: so far, or in the last run; None before the first."""
        return self._report if self._watching is None else self._watching.report

    def begin(self) -> None:
        """Watch from here on; the run before should have ended."""
        watching = self._new()
        watching.start()
        self._watching = watching

    def end(self, how: Literal["finished", "failed"], *, first_rank: bool) -> None:
        """Stop watching; write and print on the first rank; raise as told, if the run itself has not.

        Does nothing where nothing is being watched.

        Raises:
            FindingError: as ``raise_on`` asks.
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
    """What the callback of any trainer is made with, and what it tells; when a run begins and ends, each says."""

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
        self._watched = Watched(select=select, ignore=ignore, raise_on=raise_on, output=output, show=show)

    @property
    def report(self) -> Report | None:
        """What was found: so far, or in the last run; None before the first."""
        return self._watched.report
