"""A parameter's gradient is exactly zero, always.

## What it does
Looks for parameters of an optimizer whose gradient was looked at several times and was all zero each time, and
tells the operation that turned it to zero on its way back: a ReLU below zero, ``round``, a clamp beyond its end, a
saturated ``tanh``, a softmax over one value, a factor of zero.

## Why is this bad?
The parameter is in the graph and in the optimizer, and never learns. Nothing crashes.

## Example
    scores = F.relu(F.log_softmax(logits, dim=1))        # log-probabilities are negative

## Use instead
    scores = F.log_softmax(logits, dim=1)

## Known limits
Three looks at least are taken, so that factors that start at zero (LoRA, ReZero) have moved away. Experts and other
layers of a kind of which some do get a gradient are left alone, and so is a factor that is written as 0.

## Sources
docs/checking.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._zeros import cause_of, written_as_zero
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Frame, Parameter

_LOOKS = 3


def _judge(run: Run) -> Iterator[Finding]:
    groups: dict[Frame, list[Parameter]] = defaultdict(list)
    for one in run.parameters.values():
        if (
            one.id in run.owned
            and one.looks >= _LOOKS
            and one.looks == one.zeros
            and one.zeroed
            and not _sibling(run, one)
        ):
            groups[one.zeroed[0]].append(one)
    for frame, several in groups.items():
        site = several[0].zeroed
        meant = written_as_zero(site)
        ids = {one.id for one in several}
        yield RULE.finding(
            cause_of(several, site) or frame,
            f"The gradient of {run.names(ids)} was all zero in each of {min(one.looks for one in several)} steps: "
            f"line {frame.line} multiplies it by zero.",
            why="It is in the graph and in the optimizer, and never learns.",
            advice="Let a gradient through: start inside the range, drop the rounding or the ReLU on the way to "
            "the loss, or start one of two factors away from zero.",
            severity="info" if meant or run.ended == "stopped" else None,
            count=max(one.looks for one in several),
            evidence={"parameters": len(several), "steps": min(one.looks for one in several)},
            about=ids,
        )


def _sibling(run: Run, one: Parameter) -> bool:
    """Say whether another layer of the same list does get a gradient: an expert that is at work."""
    kind = _numberless(one.name)
    if kind == one.name:
        return False
    return any(
        other.id != one.id
        and other.zeros < other.looks
        and other.shape == one.shape
        and _numberless(other.name) == kind
        for other in run.parameters.values()
    )


def _numberless(name: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


RULE = Rule("GG403", "zero-gradient", "error", __doc__ or "", _judge)
