"""The optimizer holds parameters that are no longer the model's.

## What it does
Looks for an optimizer that goes on stepping while none of some of its parameters gets a gradient any more, and
parameters that were made after it, and are in no optimizer, get one in their place: a head that was replaced, a
model that was built or copied anew, a parameter that was wrapped again.

## Why is this bad?
The new parameters are never updated. Everything runs, and the loss may even fall, as the rest still learns.

## Example
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.fc = nn.Linear(512, 10)                        # the optimizer still holds the old one

## Use instead
    model.fc = nn.Linear(512, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

or change values in place: ``model.load_state_dict(best)``, ``with torch.no_grad(): weight.copy_(new)``.

## Known limits
New parameters that are moved by hand are taken to be meant.

## Sources
docs.pytorch.org/docs/stable/optim.html, "Constructing it": move a model before the optimizer is made.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.analysis._parameter_usage import made_line, replaced
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule


def _judge(run: Run) -> Iterator[Finding]:
    for one in replaced(run):
        new = [run.parameters[number] for number in one.new]
        old = [run.parameters[number] for number in one.old]
        first = min(new, key=lambda parameter: parameter.made_at)
        names = run.names(one.new)
        optimizer = run.optimizer(one.optimizer)
        yield RULE.finding(
            made_line(first, old),
            f"{names} {'was' if len(new) == 1 else 'were'} made after {optimizer}, which goes on holding "
            f"{len(old)} parameter{'s' if len(old) > 1 else ''} that no loss reaches any more: "
            f"{one.steps} of its steps left the new one{'s' if len(new) > 1 else ''} as "
            f"{'they were' if len(new) > 1 else 'it was'}.",
            why="What is trained by the loss is not what the optimizer steps.",
            advice=f"Make {optimizer} after this line, or write into the old parameters: load_state_dict(), "
            "copy_() under torch.no_grad().",
            count=one.steps,
            evidence={"new": len(new), "old": len(old), "steps": one.steps},
        )


RULE = Rule("GG502", "stale-optimizer-params", "error", __doc__ or "", _judge)
