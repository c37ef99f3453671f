"""Find the rules, and let each judge a run."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._fold import fold
from gradgate.checker.rules._rule import Rule
from gradgate.events import Log


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return every rule, by code. A file below this package that has a RULE is one."""
    here = str(Path(__file__).parent)
    names = [module.name for module in pkgutil.walk_packages([here], "gradgate.checker.rules.")]
    modules = [importlib.import_module(name) for name in names]
    found = [module.RULE for module in modules if hasattr(module, "RULE")]
    return tuple(sorted(found, key=lambda rule: rule.code))


def check(log: Log, *, strict: bool = False) -> list[Finding]:
    """Judge a run: what every rule has to say, one finding for one cause, by file and line.

    A rule that fails is a fault of ours, which must not cost the others' findings: it becomes a note. With
    ``strict`` the failure is let through, for tests.
    """
    run = Run(log)
    found = [finding for rule in rules() for finding in _judged(rule, partial(rule.judge, run), log, strict)]
    return sorted(fold(found), key=lambda one: (one.file, one.line, one.code))


def check_ranks(logs: Sequence[Log], *, strict: bool = False) -> list[Finding]:
    """Judge the runs of ranks that trained together by what only their comparison shows."""
    ranks = {log.rank: log for log in logs if log.world > 1 and log.events}
    if len(ranks) < 2 or len(ranks) != next(iter(ranks.values())).world:
        return []
    runs = [Run(log) for _, log in sorted(ranks.items())]
    return [
        finding
        for rule in rules()
        if (judge := rule.judge_ranks) is not None
        for finding in _judged(rule, partial(judge, runs, rule), runs[0].log, strict)
    ]


def _judged(rule: Rule, judge: Callable[[], Iterator[Finding]], log: Log, strict: bool) -> list[Finding]:
    try:
        return list(judge())
    except Exception as failure:
        if strict:
            raise
        return [_failed(rule, log, failure)]


def _failed(rule: Rule, log: Log, failure: Exception) -> Finding:
    return Finding(
        "GG000",
        "internal-error",
        "info",
        log.script,
        1,
        f"Rule {rule.code} ({rule.name}) failed on this run: {type(failure).__name__}: {failure}",
        "Nothing can be said of this kind of mistake here; the other rules are not touched.",
        "This is a fault of gradgate. A report with the script, or its event log, helps to mend it.",
    )
