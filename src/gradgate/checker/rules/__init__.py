"""The rules read events and return findings. Nothing here imports torch, so any saved log can be judged."""

from gradgate.checker.rules._check import check, check_ranks, in_order, rules
from gradgate.checker.rules._retired import RETIRED
from gradgate.checker.rules._rule import ENOUGH, Finding, Rule, Severity

__all__ = ["ENOUGH", "RETIRED", "Finding", "Rule", "Severity", "check", "check_ranks", "in_order", "rules"]
