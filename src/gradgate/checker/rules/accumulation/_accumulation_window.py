"""A window of micro-batches begins or ends at the wrong micro-batch.

## What it does
Follows which backward calls each optimizer step uses. Reports:

- a step after each micro-batch, in addition to the step that ends a window;
- a step after the first micro-batch (``i % N == 0`` with ``i`` from 0);
- windows with one micro-batch more or fewer than the divisor of their losses, or with sometimes more and sometimes
  fewer, because a condition skips micro-batches;
- micro-batches at the end of an epoch whose gradients are cleared before a step, never used, or added to the next
  epoch's first window.

## Why is this bad?
Leftover gradients are lost, or are added to a window whose divisor doesn't count them. With ``i % N == 0``, the
first update of an epoch uses a single micro-batch, which is still divided by N. No error is raised.

## Example
    for i, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) / 4).backward()
        if i % 4 == 0:                # steps after the first micro-batch and never uses the last three
            optimizer.step()
            optimizer.zero_grad()

## Use instead
    for i, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()

or let ``gradgate.windows(loader, size=4)`` split the epoch, and let ``Accumulator.update()`` divide each window by
its number of items.

## Known limits
Windows whose sizes vary for other reasons are assumed to be intended, such as a step at every micro-batch except
each N-th (``if i % N:``), or once a counter that nothing resets is full. Windows that cross the end of an epoch are
correct if all windows have the same number of micro-batches.

## Sources
docs/accumulation.md; the example of pytorch.org's AMP recipe, which steps at ``(i + 1) % N == 0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gradgate.checker.analysis._oracle import Fit, Kind, fits
from gradgate.checker.analysis._queries import condition_around
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import loops_around
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.accumulation._edits import count_from_one
from gradgate.checker.rules.texts import accumulation as texts
from gradgate.events import Backward, Site, Stepped

_TEXTS = {
    Kind.FIRST: texts.FIRST,
    Kind.LEFT: texts.LEFT,
    Kind.CARRIED: texts.CARRIED,
    Kind.OFF: texts.OFF,
}


def _judge(run: Run) -> Iterator[Finding]:
    for (optimizer, first, second), (times, every) in surplus_steps(run).items():
        yield RULE.say(
            second,
            texts.SURPLUS,
            count=times,
            optimizer=run.optimizer(optimizer),
            times=times,
            line=innermost(first).line,
            every=every,
        )
    for fit in fits(run):
        if fit.kind in _TEXTS:
            step = run.events[fit.windows[0][0].step].site
            yield RULE.say(
                condition_around(step, fit.site) or step,
                _TEXTS[fit.kind],
                fix=count_from_one if fit.kind in (Kind.FIRST, Kind.LEFT) else (),
                count=fit.count,
                about=fit.parameters,
                **_facts(fit),
            )


def _facts(fit: Fit) -> dict[str, Any]:
    low, high, left = min(fit.sizes), max(fit.sizes), sum(fit.left)
    rest = f"{max(fit.left)} micro-batches" if fit.left and max(fit.left) > 1 else "micro-batch"
    return {
        "windows": fit.sizes[:32],
        "left_over": fit.left,
        "size": fit.size,
        "divisor": fit.divisor,
        "largest": high,
        "held": f"{low} to {high}" if low < high else f"{high}",
        "rest": rest
        if fit.kind is not Kind.FIRST
        else f"; {left} at the end {'is' if left == 1 else 'are'} never used" * bool(left),
        "times": f" ({len(fit.left)} times)" if len(fit.left) > 1 else "",
    }


def surplus_steps(run: Run) -> dict[tuple[int, Site, Site], tuple[int, int]]:
    """Return the pairs of steps without a backward call between them, if only the second one follows every call.

    The keys are optimizer, first and second step, the values the number of second steps, and how many of them there
    are for each first step. Both steps are in the same loop.
    """
    steps: Counter[tuple[int, Site]] = Counter()
    pairs: Counter[tuple[int, Site, Site]] = Counter()
    before: dict[int, Site] = {}  # the lines of the steps since the last backward call
    for event in run.of(Backward, Stepped):
        if isinstance(event, Backward):
            before = {}
            continue
        steps[event.optimizer, event.site] += 1
        if event.optimizer in before:
            pairs[event.optimizer, before[event.optimizer], event.site] += 1
        before[event.optimizer] = event.site
    found = {}
    for (optimizer, first, second), times in pairs.items():
        every = steps[optimizer, second] // times
        loops = {tuple(loops_around(innermost(site))) for site in (first, second)}
        if first != second and times == steps[optimizer, first] > 1 < every and len(loops) == 1:
            found[optimizer, first, second] = steps[optimizer, second], every
    return found


RULE = Rule("GG101", "accumulation-window", "error", __doc__ or "", _judge)
