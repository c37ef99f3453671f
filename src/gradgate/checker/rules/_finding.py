"""The value that a rule reports about a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from gradgate.checker.fixes import Fix
from gradgate.events import Ids

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
