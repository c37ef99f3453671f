"""Findings, logs and reports made by hand, and the script that they are about."""

from pathlib import Path
from typing import Any

from gradgate.checker.fixes import Delete, Fix, Move, Replace
from gradgate.checker.reports import Held, Report, Summary
from gradgate.checker.rules import Finding
from gradgate.events import Backward, Group, Log, OptimizerMade, Parameter, Stepped

SCRIPT = """\
import torch

for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / 4
    loss.backward()
    if i % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()

scheduler.step()  # gradgate: ignore[GG401]
optimizer.step()  # gradgate: ignore
"""


def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT, "utf-8")
    return path


def _fix(code: str, line: int) -> Fix:
    """Return a fix such as the rule states."""
    loader = "loader" if line == 6 else "data"
    fixes: dict[str, Fix] = {
        "GG101": (Replace(line, "i % 4 == 0", f"(i + 1) % 4 == 0 or i + 1 == len({loader})"),),
        "GG202": (Move(line, after=line + 1),),
        "GG402": (Delete(line),) if line == 3 else (),
    }
    return fixes.get(code, ())


def finding(file: Path | str, line: int = 6, **changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "code": "GG101",
        "category": "accumulation-window",
        "severity": "error",
        "message": "The first step uses 1 micro-batch, other steps use 4; 3 at the end are never used.",
        "why": "Gradients that no step uses are lost, and a window whose number of micro-batches differs from "
        "its divisor gives a gradient of the wrong size.",
        "advice": "Step when (i + 1) % 4 == 0:\n    if (i + 1) % 4 == 0:",
        "count": 2,
        "evidence": {"windows": (1, 4, 4)},
    } | changes
    return Finding(file=str(file), line=line, **({"fix": _fix(fields["code"], line)} | fields))


SUMMARY = Summary(
    steps=30,
    backwards=120,
    seconds=12.34,
    watching_seconds=0.5,
    optimizers=(Held("optimizer", "AdamW", 62, 1_204_233),),
    unowned=Held("", "", 1, 10),
)


def report(folder: Path, **summary: Any) -> Report:
    import dataclasses

    path = script(folder)
    findings = (
        finding(path),
        finding(
            path, 10, code="GG402", category="scheduler-cadence", severity="info", count=1, advice="Once."
        ),
    )
    return Report("train.py", findings, dataclasses.replace(SUMMARY, **summary))


def log(*, steps: int = 2, rank: int = 0, world: int = 1) -> Log:
    """Two parameters in an optimizer, one in none."""
    parameters = {n: Parameter(n, f"p{n}", "model", (n + 1, 2), 4) for n in range(3)}
    group = Group(frozenset({0, 1}), 0.1)
    events = [OptimizerMade((), 0, "SGD", (group,))]
    for _ in range(steps):
        events += [Backward((), frozenset({0, 1, 2})), Stepped((), 0, frozenset({0, 1}))]  # type: ignore[list-item]
    return Log(
        "train.py",
        parameters,
        {0: "optimizer"},
        tuple(events),
        steps,
        steps,
        seconds=2.0,
        rank=rank,
        world=world,
    )
