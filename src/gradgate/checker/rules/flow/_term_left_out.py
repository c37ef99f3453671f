"""A term of the loss is computed and shown, but never back-propagated.

## What it does
Follows the values of the first steps, and looks for scalars with a graph that no loss includes:

- a sum of a term of the loss and of another term that nothing trains;
- a note: a loss that a line computes several times before each backward call, from different data or layers,
  although only the last one is back-propagated (``loss = ...`` in place of ``loss += ...``);
- a note: a value that is displayed at each step, and was computed from outputs that the loss does not use.

## Why is this bad?
The term is printed at each step, but nothing minimizes it.

## Example
    loss = rec_loss                                   # kl_loss is missing
    loss.backward()
    print(rec_loss.item(), kl_loss.item())

## Use instead
    loss = rec_loss + beta * kl_loss

If a term is only for display, compute it under ``torch.no_grad()``.

## Known limits
A displayed measure of the outputs that the loss uses, such as the entropy of a policy, is not reported, because no
value shows what was intended. Losses that refine one another's state are not reported either, nor is a term whose
weight is 0 in the whole run.

## Sources
docs/checking.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import definitions, scope_at, statements_at
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._values import flow
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import flow as texts
from gradgate.events import Frame, Site

_TEXTS = {
    "sum": texts.SUM_NOT_TRAINED,
    "last": texts.ONLY_THE_LAST,
    "shown": texts.ONLY_SHOWN,
}


def _judge(run: Run) -> Iterator[Finding]:
    values = list(flow(run).left_out())
    told = {value.loss.event.site for value in values if value.how != "shown"}
    if next(run.accumulating(), None) is not None:
        # Of a window's later micro-batches, the shadow doesn't see which values the losses include.
        values = [value for value in values if value.how != "shown"]
    for value in values:
        backward = value.loss.event.site
        if value.how != "shown" or backward not in told:
            yield RULE.say(
                _loss_line(backward) if value.how == "shown" and backward else value.site,
                _TEXTS[value.how],
                severity=None if value.how == "sum" else "info",
                count=value.times,
                about=flow(run).ids(flow(run).live[value.value]),
                times=value.times,
                line=value.site[0].line if value.site else 0,
            )


def _loss_line(backward: Site) -> Frame:
    """Return the line that adds up the loss, or else the backward call."""
    frame = backward[0]
    scope = scope_at(frame)
    for node in inside(ast.Attribute, *statements_at(frame)):
        if node.attr == "backward" and isinstance(node.value, ast.Name) and scope is not None:
            made = definitions(scope).get(node.value.id, ())
            if len(made) == 1 and isinstance(made[0].value, (ast.BinOp, ast.Name)):
                return frame._replace(line=made[0].value.lineno)
    return frame


RULE = Rule("GG407", "term-left-out", "warning", __doc__ or "", _judge)
