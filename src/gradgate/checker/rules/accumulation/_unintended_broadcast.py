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
A function that adds or swaps dimensions explicitly (``y[None]``, ``y.unsqueeze(0)``, ``x.T``) is assumed to compare
all pairs on purpose. A value without a graph, such as an advantage of shape (N, N), is not seen.

## Sources
docs.pytorch.org/docs/stable/notes/broadcasting.html; the warning of ``torch.nn.functional.mse_loss``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import own_nodes, scope_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Combined, Frame

_PAIRS = re.compile(
    r"None|unsqueeze|\.m?T\b|\.t\(|transpose|permute|newaxis|expand|repeat|meshgrid|outer|cdist|einsum|triu|tril|eye"
)


def _judge(run: Run) -> Iterator[Finding]:
    found: dict[Frame, Combined] = {}
    for event in run.of(Combined):
        if event.how in ("broadcast", "broadcast factor") and event.site and event.parameters & run.owned:
            found.setdefault(innermost(event.site), event)
    for frame, event in found.items():
        if _wants_pairs(frame):
            continue
        size, factor = event.sizes[0], event.how == "broadcast factor"
        yield RULE.finding(
            frame,
            f"Shapes [{size}, 1] and [{size}] are broadcast here: the result has the shape "
            f"[{size}, {size}], and "
            + (
                f"each value is multiplied by the factors of all {size} samples."
                if factor
                else f"the loss compares all {size} samples with each other."
            ),
            why="A sample's factor counts for all samples alike: weights per sample lose their effect."
            if factor
            else "Each prediction is trained towards the targets of all samples: the model learns their mean.",
            advice="Give both the same shape: call squeeze(1) on the value of shape (N, 1).",
            count=len(run.calls_at(event.backward)),
            evidence={"shape": list(event.sizes)},
            about=event.parameters,
        )


def _wants_pairs(frame: Frame) -> bool:
    """Return whether the function around a line compares all pairs on purpose, or can't be read."""
    scope = scope_at(frame)
    if scope is None:
        return True
    statements = (
        node for node in own_nodes(scope.node) if isinstance(node, (ast.Assign, ast.AugAssign, ast.Return))
    )
    return any(_PAIRS.search(ast.unparse(node)) for node in statements if node.value is not None)


RULE = Rule("GG107", "unintended-broadcast", "error", __doc__ or "", _judge)
