"""A loss compares every prediction of the batch with every target.

## What it does
Looks for an operation between values of shape (N, 1) and (N,), whose result has the shape (N, N), on the way to the
loss's mean or sum.

## Why is this bad?
Each prediction is compared with the targets of all samples, so that the best one is the mean of all targets, for
each sample. The loss falls to the variance of the targets and stays there.

## Example
    loss = ((model(x) - y) ** 2).mean()               # model(x) is (N, 1), y is (N,)

## Use instead
    loss = ((model(x).squeeze(1) - y) ** 2).mean()

## Known limits
A function that adds or exchanges dimensions by hand (``y[None]``, ``y.unsqueeze(0)``, ``x.T``) is assumed to want
all pairs.

## Sources
docs.pytorch.org/docs/stable/notes/broadcasting.html; the warning of ``torch.nn.functional.mse_loss``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import own_nodes, scope_at
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Combined, Frame

_PAIRS = re.compile(
    r"None|unsqueeze|\.m?T\b|\.t\(|transpose|permute|newaxis|expand|repeat|meshgrid|outer|cdist|einsum|triu|tril|eye"
)


def _judge(run: Run) -> Iterator[Finding]:
    found: dict[Frame, Combined] = {}
    for event in run.of(Combined):
        if event.how == "broadcast" and event.site and event.parameters & run.owned:
            found.setdefault(innermost(event.site), event)
    for frame, event in found.items():
        if not _wants_pairs(frame):
            size = event.sizes[0]
            yield RULE.finding(
                frame,
                f"A value of shape [{size}, 1] meets one of shape [{size}] here: the result has the shape "
                f"[{size}, {size}], and the loss compares all {size} samples with each other.",
                why="Each prediction is pulled towards the targets of all samples: the model learns their mean.",
                advice="Give both the same shape: squeeze(1) the one of shape (N, 1).",
                count=sum(each.site == event.backward for each in run.of(Backward)),
                evidence={"shape": list(event.sizes)},
                about=event.parameters,
            )


def _wants_pairs(frame: Frame) -> bool:
    """Return whether the function around a line makes pairs by hand, or can't be read."""
    scope = scope_at(frame)
    if scope is None:
        return True
    statements = (
        node for node in own_nodes(scope.node) if isinstance(node, (ast.Assign, ast.AugAssign, ast.Return))
    )
    return any(_PAIRS.search(ast.unparse(node)) for node in statements if node.value is not None)


RULE = Rule("GG107", "unintended-broadcast", "error", __doc__ or "", _judge)
