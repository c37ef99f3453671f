"""The rules: events in, findings out. Nothing here knows torch; any saved log can be judged."""

from gradgate.checks._check import check, check_ranks, rules
from gradgate.checks._finding import Finding, Severity
from gradgate.checks._rule import Rule

__all__ = ["Finding", "Rule", "Severity", "check", "check_ranks", "rules"]
