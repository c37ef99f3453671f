"""A rule: a code that never changes its meaning, a docstring that explains it, and a function that judges a run.

A finding is the value that a rule reports about a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix
from gradgate.events import Frame, Ids, Site

FixAt: TypeAlias = Callable[[Statement], Fix]
"""Reads a finding's statement, and returns the fix, or () if no fix is safe."""


ENOUGH = 8
"""Steps of an optimizer from which every rule can judge the optimizer. Some rules need no more than one."""

Severity: TypeAlias = Literal["error", "warning", "info"]
"""error: the update is wrong; warning: almost certainly not intended; info: wasted work, or a note."""


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """A mistake, and the line of the user's code to change."""

    code: str  # "GG103"
    category: str  # "microbatch-normalization"
    severity: Severity
    file: str
    line: int
    message: str  # what happened, with numbers: one sentence
    why: str  # why it matters
    advice: str  # what to write instead: one sentence
    count: int = 1  # number of occurrences
    evidence: Mapping[str, Any] = field(default_factory=dict)  # measured values
    about: Ids = frozenset()  # parameters whose gradients are affected
    fix: Fix = ()  # edits that follow the advice, if they are safe

    def __repr__(self) -> str:
        return f"Finding({self.code} {self.category}: {self.severity} at {self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Text:
    """What a finding says: templates for :meth:`str.format`, filled with the finding's facts."""

    message: str  # what happened, with numbers: one sentence
    why: str  # why it matters
    advice: str = ""  # what to write instead: one sentence; "" for the fix in words


@dataclass(frozen=True, repr=False)
class Rule:
    """A rule, defined in one file of this package. ``doc`` is the docstring of the file.

    ``judge`` takes the run of one process. ``judge_ranks`` is optional: it takes the runs of all ranks and the
    rule, and finds mistakes that only a comparison of the ranks shows.
    """

    code: str
    name: str  # the category
    severity: Severity
    doc: str
    judge: Callable[[Run], Iterator[Finding]]
    judge_ranks: Callable[[Sequence[Run], Rule], Iterator[Finding]] | None = None

    def __repr__(self) -> str:
        return f"Rule({self.code} {self.name}: {self.severity})"

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return " ".join(self.doc.strip().partition("\n\n")[0].split())

    def say(
        self,
        where: Site | Frame,
        text: Text,
        *,
        fix: Fix | FixAt = (),
        severity: Severity | None = None,
        count: int = 1,
        about: Iterable[int] = (),
        **facts: Any,
    ) -> Finding:
        """Make a finding of this rule: a place, and the facts that fill the text and become the evidence.

        ``fix`` may be a function of the finding's statement, which is called if the source can be read.
        """
        frame = where if isinstance(where, Frame) else innermost(where)
        if callable(fix):
            statement = Statement.at(frame)
            fix = fix(statement) if statement is not None else ()
        return Finding(
            self.code,
            self.name,
            severity or self.severity,
            frame.file,
            frame.line,
            text.message.format(**facts),
            text.why.format(**facts),
            text.advice.format(**facts) or " ".join(map(str, fix)),
            count,
            facts,
            frozenset(about),
            fix,
        )
