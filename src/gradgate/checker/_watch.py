"""Watch a training loop in this process: in a ``with`` block, a notebook or a test."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from gradgate.errors import FindingError, OptionError, UpdateError

if TYPE_CHECKING:
    from gradgate.checker.reports import Report, Summary
    from gradgate.checker.rules import Finding


def watch(
    *,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    raise_on: Literal["warning", "error"] | None = None,
) -> Watching:
    """Watch the training loop inside a ``with`` block, and report what is wrong with its gradients.

    The loop doesn't need to use gradgate, and computes the same results as without the block. When the block ends,
    torch's classes are as they were before.

    Args:
        select: report only these rules: codes ("GG103"), beginnings of codes ("GG1") or categories.
        ignore: do not report these.
        raise_on: raise at the end of the block if there are findings of this severity or a worse one.

    Returns:
        An object to print, with ``findings`` and ``summary``. While the block runs, they cover the run so far. In a
        notebook, where a block cannot span cells, call ``start()`` and ``stop()`` instead.

    Raises:
        OptionError: a name in ``select`` or ``ignore`` belongs to no rule, or ``raise_on`` is not a severity.
        FindingError: there are findings of this severity or a worse one. Raised at the end of the block.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> with watch() as report:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         weight.square().sum().backward()
        ...         optimizer.step()
        >>> report.findings, report.summary.steps
        ((), 3)
    """
    if raise_on not in (None, "warning", "error"):
        raise OptionError(f"watch: raise_on is {raise_on!r}; it must be 'warning', 'error' or None.")
    return Watching(select=select, ignore=ignore, raise_on=raise_on)


class Watching:
    """A loop that is or was watched. Made by :func:`watch`."""

    def __init__(
        self,
        *,
        select: str | Iterable[str] = (),
        ignore: str | Iterable[str] = (),
        raise_on: Literal["warning", "error"] | None = None,
    ) -> None:
        from gradgate.checker.recording import Watcher
        from gradgate.checker.reports import selection

        self._selection = selection(select=select, ignore=ignore)
        self._raise_on = raise_on
        self._watcher = Watcher()
        self._state: Literal["new", "running", "finished", "failed"] = "new"
        self._report: Report | None = None

    def start(self) -> Watching:
        """Begin to watch. A second call raises an UpdateError."""
        if self._state != "new":
            raise UpdateError("watch: this watch was already started. Call gradgate.watch() for a new one.")
        self._state = "running"
        self._watcher.start()
        return self

    def stop(self) -> Report:
        """Stop watching, and return the report. Further calls return the same report."""
        return self._end("finished")

    @property
    def report(self) -> Report:
        """What was found, or has been found so far."""
        if self._report is not None:
            return self._report
        return self._judged("finished")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The report's findings, sorted by file and line."""
        return self.report.findings

    @property
    def summary(self) -> Summary:
        """What was watched."""
        return self.report.summary

    def __enter__(self) -> Watching:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        report = self._end("finished" if error is None else "failed")
        if error is None:
            raise_for(report, self._raise_on)

    def save(self, path: str | Path) -> None:
        """Write the report to a file in the format of its suffix: "report.html" is a page with figures."""
        self.report.save(path)

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        if self._report is not None:
            return f"Watching({self._state}, {self._report!r})"
        return f"Watching({'not started' if self._state == 'new' else self._state})"

    def _end(self, how: Literal["finished", "failed"]) -> Report:
        if self._report is None:
            self._watcher.stop(how)
            self._state = how
            self._report = self._judged(how)
        return self._report

    def _judged(self, how: str) -> Report:
        from gradgate.checker.reports import report_on

        return report_on([self._watcher.log()], outcome=how, selection=self._selection)


def raise_for(report: Report, severity: Literal["warning", "error"] | None) -> None:
    """Raise FindingError with the whole report if it has findings of this severity or a worse one."""
    bad = [finding for finding in report.faults if severity == "warning" or finding.severity == severity]
    if severity is not None and bad:
        raise FindingError(f"watch: the loop shows mistakes.\n\n{report}")
