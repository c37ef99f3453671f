"""Micro-batches with unequal numbers of items are given equal weight.

## What it does
Compares the weight of one item (a sample, a token that isn't padding) across the micro-batches of a window:
the weight of the loss divided by the number of items in its mean. Reports windows in which that differs, and
shorter windows at the end of an epoch that are divided by the full number nevertheless. Over several ranks,
whose gradients are averaged, it compares the items of all of them in the same step. Reports a ``count=`` given to
``gradgate.Accumulator`` that is out of proportion to the items that the losses' graphs show, such as
``attention_mask.sum()`` beside shifted labels.

## Why is this bad?
The mean of means isn't the mean: an item in a small micro-batch counts more than an item in a large one. With
token counts of 9 and 120, tokens of the small micro-batch count 13 times as much.

## Example
    for x, y in window:                                   # y is padded, with other lengths each time
        loss = F.cross_entropy(model(x), y, ignore_index=PAD)
        (loss / len(window)).backward()

## Use instead
    n = sum((y != PAD).sum() for _, y in window)
    for x, y in window:
        (F.cross_entropy(model(x), y, ignore_index=PAD, reduction="sum") / n).backward()

or ``update.backward(loss, count=(y != PAD).sum())`` of ``gradgate.Accumulator``, which needs no second pass.

## Known limits
Items are known for torch's own losses, for ``.mean()``, and for sums that are divided by hand. Differences below
5 % are not reported. Those in fewer than a quarter of the windows are a note, and so are those of class weights.
Counts given to the accumulator are compared in its first backward calls, and on the CPU only.

## Sources
docs/exactness.md; "Bugs in LLM training: gradient accumulation fix", Unsloth, 2024.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._loss_weights import Share, columns_of, listed, spread
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._trainers import one_line
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.accumulation._trainer_edit import one_line_fix
from gradgate.checker.rules.accumulation._window_edits import (
    counted_by_its_items,
    divided_by_its_items,
    divided_by_its_window,
)
from gradgate.checker.rules.ranks._means import uneven, unless_rare
from gradgate.events import Miscounted, Site

_Windows: TypeAlias = list[tuple[StepWindow, list[int]]]
_LEAST = 1.05
_WHY = "The mean of means isn't the mean over all items: those in small micro-batches count too much."


def _judge(run: Run) -> Iterator[Finding]:
    yield from _miscounted(run)
    for _, site, windows in run.accumulating():
        unequal: list[list[Share]] = []
        for window, micro in windows:
            columns = columns_of(run, window, micro) if len(micro) > 1 else []
            columns.sort(key=lambda column: -max(share.per_item for share in column))
            unequal += [column for column in columns if _is_unequal(column)][:1]
        yield from _unequal(run, site, unequal, windows) if unequal else _short(run, site, windows)


def _miscounted(run: Run) -> Iterator[Finding]:
    """Report counts given to gradgate's accumulator that are out of proportion to the items of the losses."""
    for event in run.of(Miscounted):
        times = (event.count / event.items) / (event.first_count / event.first_items)
        yield RULE.finding(
            event.site,
            f"The count is {event.count:g} and the loss is a mean over {event.items:g} items, while an earlier "
            f"micro-batch of the window has the count {event.first_count:g} for {event.first_items:g}: an item "
            f"here weighs {times:.3g} times as much.",
            why="Micro-batches are weighted by their counts: with these, the update isn't the mean over all items.",
            advice="Leave out count=: the accumulator reads it from the graph of the loss."
            if event.proved
            else "Pass the number of items that the loss is a mean over: count=(labels != -100).sum(), for the "
            "labels that the loss receives.",
            fix=functools.partial(counted_by_its_items, proved=event.proved),
            evidence={"count": event.count, "items": event.items, "times": times},
        )


def _is_unequal(column: list[Share]) -> bool:
    counts = [_items(share) for share in column]
    if None in counts or len({share.term.site for share in column}) > 1:
        return False
    per_item = spread(share.per_item for share in column)
    # Only a weight that follows the number of items alone: others may be intended.
    return per_item > _LEAST and abs(per_item / spread(count or 1.0 for count in counts) - 1) < 0.02


def _items(share: Share) -> float | None:
    """Return the items of a mean, or what a plain sum is divided by: the same for every item of it."""
    if share.items is not None:
        return share.items
    return max((number for number, _ in share.divisors), default=None)


def _unequal(run: Run, site: Site, unequal: list[list[Share]], windows: _Windows) -> Iterator[Finding]:
    worst = max(unequal, key=lambda column: spread(share.per_item for share in column))
    counts = [_items(share) or 0.0 for share in worst]
    times = spread(share.per_item for share in worst)
    trainer = one_line(run, site)
    # Class weights give each batch another divisor, accumulated or not.
    weighted = all(share.term.weighted for column in unequal for share in column)
    of = f"whose class weights add up to {listed(counts)}" if weighted else f"of {listed(counts)} items"
    yield RULE.finding(
        worst[0].divided_by(len(worst)) or site,  # the division that gives them equal weight
        f"{len(counts)} micro-batches {of} have equal weight: an item of the smallest weighs {times:.3g} times as "
        "much as an item of the largest.",
        why=_WHY,
        advice=trainer
        or "Weigh each mean by its items, (loss * items).backward(), and divide the gradients once, before the "
        "step, by all items of the window.",
        fix=lambda at: (
            () if weighted else one_line_fix(run, site, at) if trainer else divided_by_its_items(at)
        ),
        severity="info" if weighted else unless_rare(len(unequal), len(windows)),
        count=len(unequal),
        evidence={"items": counts, "times": times},
        about=windows[0][0].parameters,
    )


def _short(run: Run, site: Site, windows: _Windows) -> Iterator[Finding]:
    """Report shorter windows that are divided as the full ones are."""
    size = Counter(len(micro) for _, micro in windows).most_common(1)[0][0]
    short: list[list[Share]] = []
    for window, micro in windows:
        columns = columns_of(run, window, micro) if len(micro) < size else []
        if columns and all(share.divided_by(size) is not None for share in columns[0]):
            short.append(columns[0])
    # One micro-batch at the start is a window that begins at the wrong one.
    if not short or (len(short) == len(short[0]) == len(windows[0][1]) == 1):
        return
    held, trainer = len(short[0]), one_line(run, site)
    yield RULE.finding(
        short[0][0].divided_by(size) or site,
        f"A last window of {held} micro-batch{'' if held == 1 else 'es'} is divided by {size} nevertheless: its "
        f"gradient is {held / size:.3g} of what it should be.",
        why="The items of a shorter window count less than all other items, and its update is too small.",
        advice=trainer
        or f"Divide by the number of micro-batches that the window holds, which is {held} for the last one.",
        fix=lambda at: one_line_fix(run, site, at) if trainer else divided_by_its_window(at) or (),
        count=len(short),
        evidence={"micro_batches": held, "divided_by": size},
        about=windows[0][0].parameters,
    )


RULE = Rule("GG103", "microbatch-normalization", "error", __doc__ or "", _judge, uneven)
