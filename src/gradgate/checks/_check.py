"""Find the rules, and let each judge a run."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

from gradgate.checks._finding import Finding
from gradgate.checks._fold import fold
from gradgate.checks._rule import Rule
from gradgate.checks._run import Run
from gradgate.events import Log


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return every rule, by code. A file of this room that has a RULE is one."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = [importlib.import_module(f"gradgate.checks.{name}") for name in names]
    found = [module.RULE for module in modules if hasattr(module, "RULE")]
    return tuple(sorted(found, key=lambda rule: rule.code))


def check(log: Log) -> list[Finding]:
    """Judge a run: what every rule has to say, one finding for one cause, by file and line."""
    run = Run(log)
    found = [finding for rule in rules() for finding in rule.judge(run)]
    return sorted(fold(found), key=lambda one: (one.file, one.line, one.code))
