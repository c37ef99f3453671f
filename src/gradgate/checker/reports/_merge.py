"""Several processes make the same mistake: one finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradgate.checker.rules import Finding
from gradgate.events import Log


def merged(judged: Sequence[tuple[Log, Sequence[Finding]]], of_all: Sequence[Finding] = ()) -> list[Finding]:
    """Fold findings of the same code at the same line, and say in the evidence which ranks show it.

    Ranks run the same loop in step, so the mistake happened as often as on the rank that made it most often,
    and not as often as all of them together. ``of_all`` is what only the comparison of ranks shows: it is left
    out where a rank shows the same by itself.
    """
    if len(judged) == 1:
        return list(judged[0][1])
    places: dict[tuple[str, int, str], list[tuple[Log, Finding]]] = {}
    for log, findings in judged:
        for finding in findings:
            places.setdefault((finding.file, finding.line, finding.code), []).append((log, finding))
    for finding in of_all:
        places.setdefault((finding.file, finding.line, finding.code), [(judged[0][0], finding)])
    return [_one(seen) for _, seen in sorted(places.items(), key=lambda place: place[0])]


def _one(seen: Sequence[tuple[Log, Finding]]) -> Finding:
    loudest = max((finding for _, finding in seen), key=lambda finding: finding.count)
    if any(log.world > 1 for log, _ in seen):
        where = {"ranks": sorted({log.rank for log, _ in seen})}
        return replace(loudest, evidence={**loudest.evidence, **where})
    if len(seen) > 1:
        return replace(loudest, evidence={**loudest.evidence, "processes": len(seen)})
    return loudest
