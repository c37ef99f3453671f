"""The rules: events in, findings out. Nothing here knows torch; any saved log can be judged."""

from gradgate.checks._check import check, check_ranks, rules
from gradgate.checks._finding import Finding, Severity
from gradgate.checks._history import Contribution, Window
from gradgate.checks._rule import Rule
from gradgate.checks._run import Run
from gradgate.checks._shares import Share, of_window
from gradgate.checks.mendings import Edit, mended, mending

__all__ = [
    "Contribution",
    "Edit",
    "Finding",
    "Rule",
    "Run",
    "Severity",
    "Share",
    "Window",
    "check",
    "check_ranks",
    "mended",
    "mending",
    "of_window",
    "rules",
]
