"""A window of micro-batches begins or ends at the wrong one.

## What it does
Follows which backward calls each optimizer step uses. Reports a step that comes after the first micro-batch
(``i % N == 0`` with ``i`` from 0), windows that are one too long or too short for their divisor, micro-batches at
the end of an epoch that are cleared before any step or never used, and those that go on into the next epoch's
first window.

## Why is this bad?
The gradients that are left over are lost, or are added to a window that is divided as if they were not there. The
first update of an epoch is made of one micro-batch at a fraction of its weight. Nothing crashes.

## Example
    for i, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) / 4).backward()
        if i % 4 == 0:                # steps after the first micro-batch, and leaves the last three unused
            optimizer.step()
            optimizer.zero_grad()

## Use instead
    for i, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()

or let ``gradgate.windows(loader, size=4)`` cut the epoch and ``Accumulator.update()`` divide each window by what it
holds.

## Known limits
Windows of very different sizes throughout are taken to be meant. Windows that go over the end of an epoch are right
where all of them hold the same number of micro-batches.

## Sources
docs/accumulation.md; the example of pytorch.org's AMP recipe, which steps at ``(i + 1) % N == 0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._history import Window
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import condition_around
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Frame, Site

_WHY = (
    "Gradients that no step uses are lost, and a window that holds more or fewer of them than it is divided by has "
    "the wrong size."
)


def _judge(run: Run) -> Iterator[Finding]:
    for optimizer, site, windows in run.accumulating():
        finding = _of_line(run, optimizer, site, windows)
        if finding is not None:
            yield finding


def _of_line(run: Run, optimizer: int, site: Site, windows: list[tuple[Window, list[int]]]) -> Finding | None:
    sizes = [len(micro) for _, micro in windows]
    size, often = Counter(sizes).most_common(1)[0]
    left = _left_over(run, optimizer, site, {number for _, micro in windows for number in micro})
    step = run.events[windows[0][0].step].site
    where: Frame | Site = condition_around(step, site) or innermost(step)
    size = max(size, *(n for n, times in Counter(sizes).items() if times == often))
    if size < 2:
        return None
    facts = {"windows": sizes[:32], "left_over": left}
    divisor = _divisor(run, windows)
    if sizes[0] == 1 and len(sizes) > 1:
        return RULE.finding(
            where,
            f"The first step uses 1 micro-batch, the others {size}"
            + (f"; {sum(left)} at the end are never used." if left else "."),
            why=_WHY,
            advice=f"Step when (i + 1) % {size} == 0, and once more for what is left at the end of an epoch.",
            count=1 + len(left),
            evidence=facts,
            about=windows[0][0].parameters,
        )
    if left and max(left) < max(size, *sizes):
        return RULE.finding(
            where,
            f"Windows of {size} micro-batches leave {max(left)} over at the end, whose gradients no step uses"
            + (f" ({len(left)} times)." if len(left) > 1 else "."),
            why=_WHY,
            advice="Step once more for what is left: `or i + 1 == len(loader)`, divided by as many as there are.",
            count=len(left),
            evidence=facts,
            about=windows[0][0].parameters,
        )
    next_to = any(one > size and other > size for one, other in pairwise(sizes))  # lengths that just differ
    if any(n > size for n in sizes) and often * 2 > len(sizes) and not next_to:
        return RULE.finding(
            where,
            f"A window holds {max(sizes)} micro-batches, the others {size}: what an epoch left over goes on into "
            "the next one.",
            why=_WHY,
            advice="Step for what is left at the end of the epoch, divided by as many as there are.",
            count=sum(n > size for n in sizes),
            evidence=facts,
            about=windows[0][0].parameters,
        )
    if divisor is not None and abs(size - divisor) == 1 and often * 2 > len(sizes):
        return RULE.finding(
            where,
            f"Windows hold {size} micro-batches and are divided by {divisor:g}.",
            why=_WHY,
            advice=f"Step after {divisor:g}: compare with >=, and count from 1.",
            count=often,
            evidence=facts,
            about=windows[0][0].parameters,
        )
    return None


def _left_over(run: Run, optimizer: int, site: Site, used: set[int]) -> list[int]:
    """Return the lengths of the rows of backward calls at this line that no step used, though others were."""
    rows: list[int] = []
    open_row: list[int] = []
    for number, contributions in sorted(run.by_backward.items()):
        if number < 0 or run.events[number].site != site:
            continue
        mine = [one for one in contributions if any(optimizer in run.owners[p] for p in one.atom)]
        if number not in used and mine and not any(one.consumed for one in mine):
            open_row.append(number)
            if all(one.cleared is not None for one in mine):
                continue
        elif open_row:
            rows.append(len(open_row))
            open_row = []
    if open_row and (run.ended == "finished" or _cleared(run, open_row)):
        rows.append(len(open_row))
    return rows


def _cleared(run: Run, numbers: list[int]) -> bool:
    return all(one.cleared is not None for number in numbers for one in run.by_backward[number])


def _divisor(run: Run, windows: list[tuple[Window, list[int]]]) -> float | None:
    """Return the whole number that the losses are divided by, where it is one and the same."""
    found = {
        number
        for _, micro in windows
        for backward in micro
        for term in run.backward(backward).terms
        for op, number, _ in term.factors
        if op == "div" and number > 1 and number == int(number)
    }
    return found.pop() if len(found) == 1 else None


RULE = Rule("GG101", "accumulation-window", "error", __doc__ or "", _judge)
