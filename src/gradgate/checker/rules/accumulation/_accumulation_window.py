"""A window of micro-batches begins or ends at the wrong micro-batch.

## What it does
Follows which backward calls each optimizer step uses. Reports:

- a step after each micro-batch, in addition to the step that ends a window;
- a step after the first micro-batch (``i % N == 0`` with ``i`` from 0);
- a step after every micro-batch except each N-th (``if i % N:`` without ``== 0``), if the losses are divided by N;
- a step after each micro-batch once the first window is full, because nothing resets a counter;
- windows with one micro-batch more or fewer than the divisor of their losses;
- a condition that skips micro-batches, and with the last one of a window also the window's step;
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
Windows whose sizes vary for other reasons are assumed to be intended. Windows that cross the end of an epoch are
correct if all windows have the same number of micro-batches.

## Sources
docs/accumulation.md; the example of pytorch.org's AMP recipe, which steps at ``(i + 1) % N == 0``.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import combinations, pairwise

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._loss_weights import Share, adds_up_to_one, columns_of
from gradgate.checker.analysis._queries import condition_around
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, FixAt, Rule
from gradgate.checker.rules.accumulation._left_over import clearing_line, is_flag_elsewhere, left_over
from gradgate.checker.rules.accumulation._skipped_boundary import skips_boundaries
from gradgate.checker.rules.accumulation._surplus_steps import surplus
from gradgate.checker.rules.accumulation._window_edits import count_in, divided_by_its_window
from gradgate.events import Frame, Site

_WHY = (
    "Gradients that no step uses are lost, and a window whose number of micro-batches differs from its divisor "
    "gives a gradient of the wrong size."
)


def _judge(run: Run) -> Iterator[Finding]:
    yield from surplus(run, RULE)
    lines = list(run.accumulating())
    # If a loss is divided by a number that depends on its window, the window sizes vary on purpose.
    planned = {optimizer for optimizer, _, windows in lines if _is_planned(run, windows)}
    for optimizer, site, windows in lines:
        yield from _of_line(run, optimizer, site, windows, planned=optimizer in planned)


def _of_line(
    run: Run, optimizer: int, site: Site, windows: list[tuple[StepWindow, list[int]]], *, planned: bool
) -> Iterator[Finding]:
    sizes, divisor = [len(micro) for _, micro in windows], _divisor(run, windows)
    step = run.events[windows[0][0].step].site
    condition = condition_around(step, site)
    at = Statement.at(condition) if condition is not None else None
    remainder = _remainder(at)
    if condition and remainder and divisor is not None and divisor > max(sizes):
        yield _inverted(windows, divisor, ast.unparse(remainder), condition)
        return
    often, size = max((times, size) for size, times in Counter(sizes).items())
    if size < 2:
        largest = max(windows, key=lambda each: len(each[1]))
        if condition and max(sizes) > 1 and adds_up_to_one(run, *largest):
            yield _never_reset(sizes, condition, at)
        return
    left = left_over(run, optimizer, site)
    complete = sum(len(window.micro) == divisor for window, _ in windows) * 2 > len(
        windows
    )  # counting the calls of all lines
    varied = any(first > size and second > size for first, second in pairwise(sizes))
    carried = sum(n > size for n in sizes)
    fix: Fix | FixAt = _count_from_one
    skipping = None if planned else skips_boundaries(at, site, divisor, sizes)
    if skipping is not None:
        count, fix = sum(size != divisor for size in sizes), ()
        message = (
            f"Windows hold {min(sizes)} to {max(sizes)} micro-batches but are divided by {divisor:g}: when line "
            f"{skipping} skips the last micro-batch of a window, the window's step is skipped, too."
        )
        advice = "Count the micro-batches after the condition, and step when this count is a multiple of "
        advice += f"{divisor:g}."
    elif sizes[0] == 1 and len(sizes) > 1 and often * 2 >= len(sizes) - 1 and not planned:
        count = 1 + len(left)
        message = f"The first step uses 1 micro-batch, other steps use {size}"
        message += (
            f"; {sum(left)} at the end {'is' if sum(left) == 1 else 'are'} never used." if left else "."
        )
        advice = (
            f"Step when (i + 1) % {size} == 0, where i counts from 0, and once more for the micro-batches left "
            "at the end of an epoch."
        )
    elif left and max(left) < max(sizes):
        count, rest, cleared = len(left), max(left), clearing_line(run, site)
        message = (
            f"No step uses the gradients of the {f'{rest} micro-batches' if rest > 1 else 'micro-batch'} left "
            f"after the last window of {size}{f' ({count} times)' if count > 1 else ''}"
            f"{f': line {cleared.line} clears them' if cleared else ''}."
        )
        if condition and cleared and at is not None and is_flag_elsewhere(at, site):
            condition = cleared  # the missing step belongs before it
        if carried and count == 1 and not varied:
            count = carried
            message = (
                f"Micro-batches left at the end of an epoch are added to the next window: {carried} of "
                f"{len(sizes)} windows hold{'s' * (carried == 1)} {max(sizes)} instead of {size}, and no step uses "
                f"the last {rest if rest > 1 else 'micro-batch'}."
            )
        counter = count_in(at, getattr(at.node, "test", None)) if at is not None else None
        when = f": `or {counter.last}`" if counter and counter.last else " at the end of an epoch"
        advice = f"Step once more for the remaining micro-batches{when}, and divide by their number."
    elif carried and often * 2 > len(sizes) and not varied and not planned:
        count = carried
        message = (
            f"A window holds {max(sizes)} micro-batches, other windows {size}: the leftovers of one epoch are "
            "added to the next epoch."
        )
        advice = "Step for the micro-batches left at the end of the epoch, and divide by their number."
    elif divisor is not None and abs(size - divisor) == 1 and often * 2 > len(sizes) and not complete:
        count, fix = often, _at_least
        message = f"Windows hold {size} micro-batches but are divided by {divisor:g}."
        counted = f"Step after {divisor:g} micro-batches: compare with >=, and count from 1."
        advice = (
            counted if condition else f"Divide by {size}, or add up {divisor:g} micro-batches for each step."
        )
    else:
        return
    yield RULE.finding(
        condition or step,
        message,
        why=_WHY,
        advice=advice,
        fix=fix,
        count=count,
        evidence={"windows": sizes[:32], "left_over": left},
        about=windows[0][0].parameters,
    )


def _inverted(
    windows: list[tuple[StepWindow, list[int]]], divisor: float, remainder: str, where: Frame
) -> Finding:
    """Report a step at every micro-batch except each N-th, if the losses are divided by N."""
    sizes = [len(micro) for _, micro in windows]
    every = int(divisor) - 1
    counts_from_one = not len(sizes) % every and all(
        size == (2 if place and not place % every else 1) for place, size in enumerate(sizes)
    )
    return RULE.finding(
        where,
        f"Windows hold {min(sizes)} to {max(sizes)} micro-batches but are divided by {divisor:g}: the step "
        f"runs where {remainder} is not 0.",
        why=_WHY,
        advice=f"Step where the remainder is 0: {remainder} == 0, with a counter that counts from 1.",
        fix=partial(_where_zero, remainder=remainder) if counts_from_one else (),
        count=len(windows),
        evidence={"windows": sizes[:32], "left_over": []},
        about=windows[0][0].parameters,
    )


def _remainder(at: Statement | None) -> ast.BinOp | None:
    """Return the remainder in ``if i % N:`` or ``if i % N != 0:``."""
    match at and getattr(at.node, "test", None):
        case ast.BinOp(_, ast.Mod()) as remainder:
            return remainder
        case ast.Compare(ast.BinOp(_, ast.Mod()) as remainder, [ast.NotEq()], [ast.Constant(0)]):
            return remainder
    return None


def _is_planned(run: Run, windows: list[tuple[StepWindow, list[int]]]) -> bool:
    """Return whether window sizes vary on purpose: a term is divided by a number that depends on its window."""
    columns = grouped(pair for window, micro in windows for pair in enumerate(columns_of(run, window, micro)))
    return any(map(_follows_its_windows, columns.values()))


def _follows_its_windows(columns: list[list[Share]]) -> bool:
    by_size: dict[int, set[float]] = defaultdict(set)
    for column in columns:
        means = all(share.factor is not None for share in column)
        if means and abs(sum(share.factor or 0.0 for share in column) - 1) > 1e-3:
            return False
        weights = set() if means else {share.per_item for share in column}
        if len(weights) > 1 or not (means or column[0].divisors):
            return False  # sums divided by their window's items weight all items equally
        by_size[len(column)] |= weights
    # Each window size has its own weight, so the divisor isn't a fixed window size.
    return len(by_size) > 1 and not any(first & other for first, other in combinations(by_size.values(), 2))


def _never_reset(sizes: list[int], condition: Frame, at: Statement | None) -> Finding:
    test = (
        f"`{ast.unparse(at.node.test)}`"
        if at is not None and isinstance(at.node, ast.If)
        else "the condition"
    )
    return RULE.finding(
        condition,
        f"A window holds {max(sizes)} micro-batches and {sizes.count(1)} windows hold 1, but each loss is weighted "
        f"as one of {max(sizes)}: {test} stays true after the first window.",
        why=_WHY,
        advice=f"After each step, reset the counter in {test}.",
        count=sizes.count(1),
        evidence={"windows": sizes[:32]},
    )


def _divisor(run: Run, windows: list[tuple[StepWindow, list[int]]]) -> float | None:
    """Return the whole number that all losses are divided by, or None if the divisors differ."""
    found = {
        number
        for _, micro in windows
        for backward in micro
        for term in run.backward(backward).terms
        for op, number, _ in term.factors
        if op == "div" and number > 1 and number == int(number)
    }
    return found.pop() if len(found) == 1 else None


# The fix: another condition


def _where_zero(at: Statement, *, remainder: str) -> Fix:
    """Compare the remainder with 0."""
    test = at.node.test if isinstance(at.node, ast.If) else None
    return (Replace(at.line, ast.unparse(test), f"{remainder} == 0"),) if test is not None else ()


def _at_least(at: Statement) -> Fix:
    """Compare by >= instead of >."""
    match at.node:
        case ast.If(ast.Compare(left, [ast.Gt()], [right]) as test):
            return (Replace(at.line, ast.unparse(test), f"{ast.unparse(left)} >= {ast.unparse(right)}"),)
    return ()


def _count_from_one(at: Statement) -> Fix:
    """Count micro-batches from 1, also step at the end of the loop, and divide the last window by its size."""
    test = at.node.test if isinstance(at.node, ast.If) else None
    count = count_in(at, test) if not isinstance(test, ast.BoolOp) else None
    divided = divided_by_its_window(at)
    if count is None or test is None or not count.last or divided is None:
        return ()
    ordinal = count.counter if count.first == 1 else f"({count.counter} + 1)"
    return (Replace(at.line, ast.unparse(test), f"{ordinal} % {count.size} == 0 or {count.last}"), *divided)


RULE = Rule("GG101", "accumulation-window", "error", __doc__ or "", _judge)
