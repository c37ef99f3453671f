"""The gradient of a skipped batch is kept and added to the next batch's.

## What it does
Looks for a condition between ``backward()`` and the step that skips both the step and the clearing, such as a
``continue`` or ``return`` for a loss or norm that is too large. Reports the condition if the next step used the
gradients of several batches while other steps use one batch.

## Why is this bad?
The next update still includes the batch that should have been skipped. If this batch's gradient is infinite or NaN,
the next update is too.

## Example
    loss.backward()
    if loss.item() > 10:
        continue                     # the gradient stays in .grad
    optimizer.step()
    optimizer.zero_grad()

## Use instead
    optimizer.zero_grad()            # before each backward()
    loss.backward()
    if loss.item() > 10:
        continue
    optimizer.step()

## Known limits
The condition must be in the function that calls both ``backward()`` and ``step()``. If most windows hold several
batches, they are assumed to be gradient accumulation. Batches that no step follows until the end are not reported:
the optimizer may be done, or pause.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._oracle import Kind, fits
from gradgate.checker.analysis._queries import with_line_of
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import own_nodes, scope_at
from gradgate.checker.analysis._source import spans
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import clearing as texts
from gradgate.events import Frame, Site


def _judge(run: Run) -> Iterator[Finding]:
    for fit in fits(run):
        condition = _skips(fit.site, run.events[fit.windows[0][0].step].site)
        if fit.kind is Kind.SKIPPED and condition is not None:
            where, test = condition
            yield RULE.say(
                where,
                texts.SKIPPED,
                fix=_cleared,
                count=fit.count,
                about=fit.parameters,
                test=test,
                skipped=fit.count,
                steps=len(fit.sizes),
                optimizer=run.optimizer(fit.optimizer),
                most=max(fit.sizes),
            )


def _skips(site: Site, step: Site) -> tuple[Frame, str] | None:
    """Return the ``if`` that skips the step after a backward call, and its condition."""
    for frame, line in with_line_of(site, step):
        scope = scope_at(frame)
        if line is None or scope is None or line <= frame.line:
            continue
        for node in own_nodes(scope.node):
            if isinstance(node, ast.If) and frame.line < node.lineno < line:
                leaves = any(isinstance(inner, (ast.Continue, ast.Return)) for inner in node.body)
                test = ast.unparse(node.test)
                if (leaves or spans(node, line)) and "%" not in test:
                    return frame._replace(line=node.lineno), test
        return None
    return None


def _cleared(at: Statement) -> Fix:
    """Clear the gradients before the batch is skipped, with the call that the script makes after the step."""
    match at.node:
        case ast.If(_, [*_, ast.Continue() | ast.Return() as leaving]):
            nodes = [node for node in own_nodes(at.function) if isinstance(node, ast.Expr)]
            calls = [node for node in map(ast.unparse, nodes) if node.endswith(".zero_grad()")]
            return (Insert(calls[0], before=leaving.lineno),) if len(calls) == 1 else ()
    return ()


RULE = Rule("GG204", "skipped-batch", "error", __doc__ or "", _judge)
