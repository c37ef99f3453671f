"""One cause, one finding: what follows from another mistake is left out."""

from __future__ import annotations

from collections.abc import Iterable

from gradgate.checks._finding import Finding

# A mistake, and what else it makes look wrong.
_EXPLAINS: dict[str, frozenset[str]] = {
    "accumulation-window": frozenset({"accumulation-scaling", "microbatch-normalization"}),
    "ineffective-step": frozenset({"zero-grad-misplaced"}),
}


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Leave out symptoms, and put together what one rule says of one line several times."""
    together: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.file, finding.line)
        first = together.setdefault(key, finding)
        if first is not finding and finding.count > first.count:
            together[key] = finding
    categories = {finding.category for finding in together.values()}
    explained = {symptom for category in categories for symptom in _EXPLAINS.get(category, ())}
    return [finding for finding in together.values() if finding.category not in explained]
