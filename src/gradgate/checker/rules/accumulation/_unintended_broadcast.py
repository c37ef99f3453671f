"""A loss compares every prediction of the batch with every target.

## What it does
Looks for an operation between values of shape (N, 1) and (N,) whose result of shape (N, N) is averaged or summed in
the loss. The loss may be written out by hand, such as a Huber or a pinball loss.

## Why is this bad?
The loss compares each prediction with the targets of all samples, so it is smallest if every prediction is the mean
of all targets. The loss falls to the variance of the targets and stays there. In a product of losses and weights,
each loss is multiplied by all weights, so the weights lose their effect.

## Example
    loss = ((model(x) - y) ** 2).mean()               # model(x) is (N, 1), y is (N,)

## Use instead
    loss = ((model(x).squeeze(1) - y) ** 2).mean()

## Known limits
Pairs are assumed to be intended if the function adds the dimension of a prediction itself (``pred[:, None] - y``),
or if the loss also compares these predictions with each other in all pairs. A value without a graph, such as an
advantage of shape (N, N), is not seen.

## Sources
docs.pytorch.org/docs/stable/notes/broadcasting.html; the warning of ``torch.nn.functional.mse_loss``.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import accumulation as texts
from gradgate.events import Combined, Frame


def _judge(run: Run) -> Iterator[Finding]:
    found: dict[Frame, Combined] = {}
    for event in run.of(Combined):
        if event.how in ("broadcast", "broadcast factor") and event.site and event.parameters & run.owned:
            found.setdefault(innermost(event.site), event)
    for frame, event in found.items():
        size, factor = event.sizes[0], event.how == "broadcast factor"
        yield RULE.say(
            frame,
            texts.BROADCAST,
            count=len(run.calls_at(event.backward)),
            about=event.parameters,
            size=size,
            shape=list(event.sizes),
            effect=f"each value is multiplied by the factors of all {size} samples"
            if factor
            else f"the loss compares all {size} samples with each other",
            why="A sample's factor counts for all samples alike: weights per sample lose their effect."
            if factor
            else "Each prediction is trained towards the targets of all samples: the model learns their mean.",
        )


RULE = Rule("GG107", "unintended-broadcast", "error", __doc__ or "", _judge)
