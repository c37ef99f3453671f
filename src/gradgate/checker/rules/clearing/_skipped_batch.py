"""The gradient of a skipped batch is kept and added to the next batch's.

## What it does
Looks for a condition between ``backward()`` and the step that skips both the step and the clearing, such as a
``continue`` or ``return`` for a loss or norm that is too large. Reports the condition if the next step used the
gradients of several batches while other steps use one batch, or if it skipped all batches.

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
The condition must be in the function that calls both ``backward()`` and ``step()``. A condition on the number of
batches (``i % 4``) is assumed to be gradient accumulation. If batches are skipped only after an optimizer's last
step, the optimizer may be done, or pause: they are reported only if the condition names a loss, a norm or the like.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._loss_weights import adds_up_to_one
from gradgate.checker.analysis._queries import with_line_of
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, own_calls, own_nodes, scope_at
from gradgate.checker.analysis._source import spans
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Frame, Site

_LEAST = 5  # backward calls that no step follows
UNUSUAL = re.compile(r"loss|norm|grad|nan|inf|finite|\bgn\b", re.IGNORECASE)


def _judge(run: Run) -> Iterator[Finding]:
    yield from _all_skipped(run)
    lines = grouped(
        ((window.optimizer, site), window)
        for window in run.windows
        for site in run.by_line(window.micro)
        if len(run.by_line(window.micro)) == 1 and not run.repeats_closure(window)
    )
    for (optimizer, site), windows in lines.items():
        sizes = [len(window.micro) for window in windows]
        left = _left_over(run, site, windows[-1])
        condition = _skips(site, run.events[windows[0].step].site)
        if condition is None or len({*sizes, left or sizes[0]}) == 1:
            continue
        where, test = condition
        largest = max(windows, key=lambda window: len(window.micro))
        if max(sizes) > 1 and adds_up_to_one(run, largest, largest.micro):
            continue  # accumulation-window reports it
        phases = max(sizes) == 1  # after its last step, an optimizer may pause or be done
        if (phases or sizes.count(1) * 2 < len(sizes)) and not UNUSUAL.search(test):
            continue
        skipped, used = sum(size - 1 for size in sizes) + left, max(sizes)
        effects = [f"one step of {run.optimizer(optimizer)} then uses the gradients of up to {used} batches"]
        effects += [
            f"the gradients of {'all' if left == skipped else f'the last {left}'} add up, and no step follows"
        ]
        yield RULE.finding(
            where,
            f"`if {test}` skips the step and the clearing for {skipped} batches: "
            f"{'; '.join(effects[used == 1 : 2 if left else 1])}.",
            why="The updates still include the batches that should have been skipped."
            if used > 1
            else "The gradient still includes the batches that should have been skipped, and may stay too large.",
            advice="Call zero_grad() before each backward(), or where a batch is skipped.",
            fix=_cleared,
            count=skipped,
            evidence={"skipped": skipped, "steps": len(sizes)},
            about=frozenset().union(*(window.parameters for window in windows)),
        )


def _all_skipped(run: Run) -> Iterator[Finding]:
    """Report a condition that skips all batches, so that the gradients of the whole run add up."""
    calls = grouped(
        (run.events[n].site, part) for n, parts in run.by_backward.items() if n >= 0 for part in parts
    )
    for site, parts in calls.items() if run.ended == "finished" and not run.stepping else ():
        count = len({part.backward for part in parts})
        if count < _LEAST or any(part.cleared is not None for part in parts):
            continue
        for frame in site:
            scope = scope_at(frame)
            steps = [call.lineno for call in own_calls(scope.node) if called(call) == "step"] if scope else []
            condition = _skips((frame,), (frame._replace(line=max(steps, default=0)),))
            if condition is not None and UNUSUAL.search(condition[1]):
                yield RULE.finding(
                    condition[0],
                    f"`if {condition[1]}` skips the step and the clearing for all {count} batches: their gradients "
                    "add up, and no step follows.",
                    why="No parameter changes. If the condition depends on the gradient, it stays true because the "
                    "gradient keeps growing.",
                    advice="Call zero_grad() before each backward(), or where a batch is skipped.",
                    fix=_cleared,
                    count=count,
                    evidence={"skipped": count, "steps": 0},
                    about=frozenset().union(*(part.atom for part in parts)),
                )
                break


def _left_over(run: Run, site: Site, last: StepWindow) -> int:
    """Return how many of a line's backward calls follow the last step and keep their gradients to the end."""
    later = [number for number in run.by_backward if number > last.step and run.events[number].site == site]
    kept = sum(all(part.cleared is None for part in run.by_backward[number]) for number in later)
    return kept if kept > 1 else 0


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
