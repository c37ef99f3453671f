"""Finds the rules and judges a run by each of them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Log, cell_of

# Each mistake, with the symptoms that it also causes in the same parameters.
_EXPLAINS: dict[str, frozenset[str]] = {
    "ddp-sync": frozenset({"accumulation-scaling"}),
    "attached-target": frozenset({"wasted-gradient"}),
    "broken-graph": frozenset({"wasted-gradient", "zero-gradient", "unreached-parameter"}),
    "term-left-out": frozenset({"broken-graph"}),
    "unreached-parameter": frozenset({"term-left-out"}),
    "zero-gradient": frozenset({"term-left-out", "broken-graph"}),
    "param-not-in-optimizer": frozenset({"broken-graph"}),
    "stale-optimizer-params": frozenset({"broken-graph"}),
    "graph-retention": frozenset({"term-left-out"}),
    "ineffective-step": frozenset({"zero-grad-misplaced", "broken-graph"}),
    "zero-grad-misplaced": frozenset({"zero-gradient"}),
    "amp-scaler-misuse": frozenset({"nonfinite-gradient"}),
    "param-in-multiple-optimizers": frozenset({"param-not-in-optimizer", "wasted-gradient"}),
    "frozen-state-drift": frozenset({"zero-gradient"}),
}


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return every rule, sorted by code. Each file below this package that defines RULE is a rule."""
    here = str(Path(__file__).parent)
    names = [module.name for module in pkgutil.walk_packages([here], "gradgate.checker.rules.")]
    modules = [importlib.import_module(name) for name in names]
    found = [module.RULE for module in modules if hasattr(module, "RULE")]
    return tuple(sorted(found, key=lambda rule: rule.code))


def check(log: Log, *, strict: bool = False) -> list[Finding]:
    """Judge a run by every rule, and return one finding for each cause, by file and line.

    A rule that fails is a bug in gradgate. It becomes a note, so that the other rules' findings are not lost. With
    ``strict``, which is for tests, the failure is raised.
    """
    run = Run(log)
    found = [finding for rule in rules() for finding in _judged(rule, partial(rule.judge, run), log, strict)]
    return sorted(fold(found), key=in_order)


def in_order(finding: Finding) -> tuple[str, int, int, str]:
    """Return the key by which findings are sorted: file, cell number, line, code."""
    return *(cell_of(finding.file) or (finding.file, 0)), finding.line, finding.code


def check_ranks(logs: Sequence[Log], *, strict: bool = False) -> list[Finding]:
    """Compare the runs of ranks that trained together, and return findings that only the comparison shows."""
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


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Leave out symptoms of other findings, and keep one finding for each rule and line."""
    together: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.file, finding.line)
        first = together.setdefault(key, finding)
        if first is not finding and finding.count > first.count:
            together[key] = finding
    found = together.values()
    return [finding for finding in found if not any(_explains(cause, finding) for cause in found)]


def _explains(cause: Finding, symptom: Finding) -> bool:
    if cause.severity == "info" != symptom.severity:
        return False  # what a note reports may be intended, so it explains no mistake
    if symptom.category not in _EXPLAINS.get(cause.category, ()) or not cause.about & symptom.about:
        return False
    mutual = cause.category in _EXPLAINS.get(symptom.category, ())
    # If each may explain the other, the finding about more parameters is the cause.
    return not mutual or (len(cause.about), cause.code) > (len(symptom.about), symptom.code)


def _judged(rule: Rule, judge: Callable[[], Iterator[Finding]], log: Log, strict: bool) -> list[Finding]:
    try:
        return list(judge())
    except Exception as failure:
        if strict:
            raise
        failed = Finding(
            "GG000",
            "internal-error",
            "info",
            log.script,
            1,
            f"Rule {rule.code} ({rule.name}) failed on this run: {type(failure).__name__}: {failure}",
            "This rule can't judge the run. The other rules are not affected.",
            "This is a bug in gradgate. Please report it with the script, or with its event log.",
        )
        return [failed]
