"""The rules: events in, findings out. Nothing here knows torch; any saved log can be judged."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from gradgate.checks._finding import Finding, Severity
from gradgate.checks._fold import fold
from gradgate.checks._rule import Rule
from gradgate.checks._run import Run
from gradgate.events import Log

__all__ = ["Finding", "Rule", "Severity", "check", "rules"]


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return every rule, by code. A file of this room that has a RULE is one."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)
    ]
    found = [module.RULE for module in modules if hasattr(module, "RULE")]
    return tuple(sorted(found, key=lambda rule: rule.code))


def check(log: Log) -> list[Finding]:
    """Judge a run: what every rule has to say, one finding for one cause, by file and line."""
    run = Run(log)
    found = [finding for rule in rules() for finding in rule.judge(run)]
    return sorted(fold(found), key=lambda one: (one.file, one.line, one.code))
