"""The optimizer holds parameters that the model no longer uses.

## What it does
Looks for an optimizer whose parameters no longer get a gradient, while newer parameters outside the optimizer do.
Examples are a replaced head, a model that was built or copied again, and a parameter that was wrapped again. Also
looks for lines that bind the name of an optimizer's tensor to a new tensor (``self.w = self.w.detach().clamp(0)``).

## Why is this bad?
The new parameters are never updated. No error is raised, and the loss may even fall because other layers still
learn.

## Example
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.fc = nn.Linear(512, 10)                        # the optimizer still holds the old layer

## Use instead
    model.fc = nn.Linear(512, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

or change the values in place: ``model.load_state_dict(best)``, ``with torch.no_grad(): weight.copy_(new)``.

## Known limits
New parameters that are updated by hand are assumed to be intended. A plain tensor that a loop makes anew (latent
codes of a batch), and a tensor that becomes a constant, are not found.

## Sources
docs.pytorch.org/docs/stable/optim.html, "Constructing it": move a model to its device before constructing the
optimizer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._parameter_usage import rebound, replaced
from gradgate.checker.analysis._queries import made_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import ownership as texts
from gradgate.events import Frame, Parameter, Site


def _judge(run: Run) -> Iterator[Finding]:
    for swap in replaced(run):
        new = [run.parameters[number] for number in swap.new]
        old = [run.parameters[number] for number in swap.old]
        optimizer = run.optimizer(swap.optimizer)
        first = min(new, key=lambda parameter: parameter.made_at)
        yield RULE.say(
            _swapping_line(first, old, run.made[swap.optimizer][0].site),
            texts.REPLACED,
            count=swap.steps,
            about=swap.new | swap.old,
            names=run.names(swap.new),
            was="was" if len(new) == 1 else "were",
            optimizer=optimizer,
            old=f"{len(old)} parameter{'s' if len(old) > 1 else ''}",
            parameter=f"parameter{'s' if len(new) > 1 else ''}",
            steps=swap.steps,
        )
    for tensor in rebound(run):
        yield RULE.say(
            tensor.line,
            texts.REBOUND,
            count=tensor.calls,
            about=tensor.new | {tensor.old},
            name=tensor.target,
            optimizer=run.optimizer(tensor.optimizer),
            backwards=tensor.calls,
        )


def _swapping_line(first: Parameter, old: list[Parameter], made: Site) -> Frame:
    """Return the line that made new parameters, or that called the function which returns them."""
    line = made_line(first, old)
    shared = {frame[::2] for frame in made}
    outer = first.made[first.made.index(line) + 1 :]
    at = Statement.at(line)
    returns = at is not None and isinstance(at.node, ast.Return)
    return outer[0] if returns and line[::2] not in shared and outer and outer[0][::2] in shared else line


RULE = Rule("GG502", "stale-optimizer-params", "error", __doc__ or "", _judge)
