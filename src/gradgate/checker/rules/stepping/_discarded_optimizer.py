"""Finds schedulers of an optimizer that never steps while another optimizer trains its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.stepping._cadence import Cadence

_CALLS = 2  # number of scheduler calls after the other optimizer's first step
_STEPS = 3


def of_discarded_optimizers(
    run: Run, rule: Rule, by_optimizer: Mapping[int, Sequence[Cadence]]
) -> Iterator[Finding]:
    """Report a scheduler of an optimizer that never steps, if another one trains at a constant learning rate."""
    for cadence in (each for optimizer in run.made for each in by_optimizer.get(optimizer, ())):
        made = cadence.made
        if any(step > cadence.number for step in run.steps(made.optimizer)):
            continue
        for other in run.made.keys() - by_optimizer.keys():
            steps = [step for step in run.steps(other) if step > cadence.number]
            calls = [call for call in cadence.calls if steps and call > steps[0]]
            rates = {run.stepped(step).lr for step in steps}
            if len(steps) < _STEPS or len(calls) < _CALLS or len(rates) != 1:
                continue
            if not run.held(other) & run.held(made.optimizer):
                continue
            name, rate = run.optimizer(other), max(next(iter(rates)), default=0.0)
            yield rule.finding(
                made.site,
                f"{made.kind} changes an optimizer that never steps. {name} updates the same parameters, but its "
                f"learning rate is {rate:g} in all {len(steps)} steps, although {made.kind} is advanced "
                f"{len(calls)} times.",
                why="The learning rate never follows the schedule.",
                advice=f"Construct the scheduler after {name}, and pass {name} to it.",
                severity="error",
                count=len(calls),
                evidence={"steps": len(steps), "advanced": len(calls)},
            )
            break
