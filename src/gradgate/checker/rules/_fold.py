"""One cause, one finding: what follows from another mistake is left out."""

from __future__ import annotations

from collections.abc import Iterable

from gradgate.checker.rules._finding import Finding

# A mistake, and what else it makes look wrong about the same parameters.
_EXPLAINS: dict[str, frozenset[str]] = {
    "accumulation-window": frozenset({"accumulation-scaling", "microbatch-normalization"}),
    "ddp-sync": frozenset({"accumulation-scaling"}),
    "ineffective-step": frozenset({"zero-grad-misplaced"}),
    "zero-grad-misplaced": frozenset({"zero-gradient"}),
    "amp-scaler-misuse": frozenset({"nonfinite-gradient"}),
    "frozen-state-drift": frozenset({"zero-gradient"}),
}


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Leave out symptoms, and put together what one rule says of one line several times."""
    together: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.file, finding.line)
        first = together.setdefault(key, finding)
        if first is not finding and finding.count > first.count:
            together[key] = finding
    found = together.values()
    return [one for one in found if not any(_explains(cause, one) for cause in found)]


def _explains(cause: Finding, symptom: Finding) -> bool:
    return symptom.category in _EXPLAINS.get(cause.category, ()) and bool(cause.about & symptom.about)
