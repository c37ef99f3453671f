"""Micro-batches with unequal numbers of items have equal weight.

## What it does
Compares the weight of one item (a sample, or a token that isn't padding) across the micro-batches of a window. This
weight is the weight of the loss divided by the number of items in its mean. Reports windows whose item weights
differ, and shorter windows at the end of an epoch that are divided by the size of a full window. If gradients are
averaged or added over several ranks, the rule compares the items of all ranks in the same step. Also reports a
``count=`` passed to ``gradgate.Accumulator`` that isn't proportional to the number of items in the losses, such as
``attention_mask.sum()`` for shifted labels.

Warns about an accumulated loss that compares the items of a micro-batch with one another, such as InfoNCE. A sum
over micro-batches lacks the pairs between them, so no division gives the loss of the whole batch. For losses other
than a cross entropy that finds each item among the others, this is a note: each micro-batch may be one sample, such
as a graph with its nodes.

## Why is this bad?
The mean of means isn't the mean over all items: an item in a small micro-batch counts more than an item in a large
one. With 9 and 120 tokens, a token of the small micro-batch counts 13 times as much.

## Example
    for x, y in window:                                   # y is padded; the lengths differ
        loss = F.cross_entropy(model(x), y, ignore_index=PAD)
        (loss / len(window)).backward()

## Use instead
    n = sum((y != PAD).sum() for _, y in window)
    for x, y in window:
        (F.cross_entropy(model(x), y, ignore_index=PAD, reduction="sum") / n).backward()

or call ``update.backward(loss, count=(y != PAD).sum())`` of ``gradgate.Accumulator``, which needs no second pass
over the window.

## Known limits
The number of items is known for torch's own losses, for ``.mean()``, and for sums that are divided by hand.
Differences below 5% are not reported. Differences in fewer than a quarter of the windows are only notes, and so are
differences due to class weights. Ranks that exchange their gradients in one flat buffer, or in hooks of their own,
are not compared. Counts passed to the accumulator are compared only in its first backward calls and only on the
CPU.

## Sources
docs/exactness.md; "Bugs in LLM training: gradient accumulation fix", Unsloth, 2024.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._loss_weights import Share, adds_up_to_one, columns_of, listed, spread
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._trainers import one_line
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.accumulation._divisor_edits import one_line_fix
from gradgate.checker.rules.accumulation._window_edits import (
    counted_by_its_items,
    divided_by_its_items,
    divided_by_its_window,
)
from gradgate.checker.rules.ranks._means import uneven, unless_rare
from gradgate.events import Combined, Miscounted, Site

_Windows: TypeAlias = list[tuple[StepWindow, list[int]]]
_LEAST = 1.05
_WHY = "The mean of means isn't the mean over all items: items in small micro-batches count too much."


def _judge(run: Run) -> Iterator[Finding]:
    yield from _miscounted(run)
    comparing = _comparing(run)
    for place, event in comparing.items():
        yield _lost_pairs(run, place, event)
    for _, site, windows in run.accumulating():
        unequal: list[list[Share]] = []
        for window, micro in windows:
            columns = columns_of(run, window, micro) if len(micro) > 1 else []
            known = [column for column in columns if column[0].term.site not in comparing]
            wrong = [column for column in known if _is_unequal(column)]
            unequal += sorted(wrong, key=lambda column: -max(share.per_item for share in column))[:1]
        yield from _unequal(run, site, unequal, windows) if unequal else _short(run, site, windows)


def _miscounted(run: Run) -> Iterator[Finding]:
    """Report counts passed to gradgate's accumulator that are not proportional to the items in the losses."""
    for event in run.of(Miscounted):
        times = (event.count / event.items) / (event.first_count / event.first_items)
        yield RULE.finding(
            event.site,
            f"The count is {event.count:g} for a mean over {event.items:g} items, but an earlier micro-batch "
            f"of the window has the count {event.first_count:g} for {event.first_items:g} items: an item here "
            f"weighs {times:.3g} times as much.",
            why="The counts weight the micro-batches: with these counts, the update isn't the mean over all items.",
            advice="Leave out count=: the accumulator reads the count from the loss's graph."
            if event.proved
            else "Pass the number of items in the loss's mean: count=(labels != -100).sum(), with the "
            "labels that the loss receives.",
            fix=functools.partial(counted_by_its_items, proved=event.proved),
            evidence={"count": event.count, "items": event.items, "times": times},
        )


def _comparing(run: Run) -> dict[Site, Combined]:
    """Return the accumulated losses that compare the items of a micro-batch with one another, by their lines."""
    accumulating = {site for _, site, _ in run.accumulating()} | {()}
    events = [event for event in run.of(Combined) if event.how in ("in batch", "pairs")]
    return {event.site: event for event in events if event.site and event.backward in accumulating}


def _lost_pairs(run: Run, site: Site, event: Combined) -> Finding:
    proved = event.how == "in batch"
    unless = "" if proved else "If each micro-batch is one sample, such as a graph, leave it as it is. Else: "
    return RULE.finding(
        site,
        "This loss compares the items of a micro-batch with one another, and several micro-batches are "
        "accumulated: pairs of items from different micro-batches are left out.",
        why="Each item is compared with fewer others than in the whole batch, so no division of the sum gives the "
        "loss of the whole batch.",
        advice=f"{unless}Compute the loss over the whole window: update.backward_coupled(encode, micro_batches, "
        "loss_fn), with gradgate.Accumulator. Or use a larger batch without accumulation.",
        severity="warning" if proved else "info",
        count=len(run.calls_at(event.backward)) or 1,
        about=event.parameters,
    )


def _is_unequal(column: list[Share]) -> bool:
    counts = [_items(share) for share in column]
    if None in counts or len({share.term.site for share in column}) > 1:
        return False
    per_item = spread(share.per_item for share in column)
    # Report only weights that follow the number of items: other weights may be intended.
    return per_item > _LEAST and abs(per_item / spread(count or 1.0 for count in counts) - 1) < 0.02


def _items(share: Share) -> float | None:
    """Return the number of items in a mean. For a plain sum, return its divisor, by which each item is divided."""
    if share.items is not None:
        return share.items
    return max((number for number, _ in share.divisors), default=None)


def _unequal(run: Run, site: Site, unequal: list[list[Share]], windows: _Windows) -> Iterator[Finding]:
    worst = max(unequal, key=lambda column: spread(share.per_item for share in column))
    counts = [_items(share) or 0.0 for share in worst]
    times = spread(share.per_item for share in worst)
    computed = _in_the_script(worst[0], site)
    trainer = one_line(run, site, computed)
    divided = worst[0].divided_by(len(worst)) is not None
    instead = (
        f"Instead of dividing each mean by {len(worst)}, multiply it" if divided else "Multiply each mean"
    )
    clips = any(part.clips for window, _ in windows for part in window.fresh)
    # With class weights, the divisor differs from batch to batch, with or without accumulation.
    weighted = all(share.term.weighted for column in unequal for share in column)
    of = f"whose class weights add up to {listed(counts)}" if weighted else f"of {listed(counts)} items"
    yield RULE.finding(
        worst[0].divided_by(len(worst)) or site,  # the division that gives the micro-batches equal weight
        f"{len(counts)} micro-batches {of} have equal weight: an item in the smallest weighs {times:.3g} times as "
        "much as an item in the largest.",
        why=_WHY,
        advice=trainer
        or f"{instead} by its number of items, (loss * items).backward(), and divide the gradients once, before "
        f"the {'clipping' if clips else 'step'}, by all items of the window.",
        fix=lambda at: (
            () if weighted else one_line_fix(run, site, at, computed) if trainer else divided_by_its_items(at)
        ),
        severity="info" if weighted else unless_rare(len(unequal), len(windows)),
        count=len(unequal),
        evidence={"items": counts, "times": times},
        about=windows[0][0].parameters,
    )


def _in_the_script(share: Share, site: Site) -> Site:
    """Return where the script computes the loss of a trainer, or () if the trainer's model computes it."""
    where = share.term.site
    return where if where[:1] != site[:1] else ()


def _short(run: Run, site: Site, windows: _Windows) -> Iterator[Finding]:
    """Report shorter windows that are divided by the size of a full window."""
    size = Counter(len(micro) for _, micro in windows).most_common(1)[0][0]
    short: list[list[Share]] = []
    for window, micro in windows:
        columns = columns_of(run, window, micro) if len(micro) < size else []
        corrected = adds_up_to_one(run, window, micro)  # by hand
        if columns and not corrected and all(share.divided_by(size) is not None for share in columns[0]):
            short.append(columns[0])
    # A single micro-batch at the start is a misplaced window, which accumulation-window reports.
    if not short or (len(short) == len(short[0]) == len(windows[0][1]) == 1):
        return
    held, computed = len(short[0]), _in_the_script(short[0][0], site)
    trainer = one_line(run, site, computed)
    yield RULE.finding(
        short[0][0].divided_by(size) or site,
        f"The last window holds {held} micro-batch{'' if held == 1 else 'es'} but is divided by {size}: its "
        f"gradient is {held / size:.3g} times the correct gradient.",
        why="Items in the shorter window count less than all other items, and the update is too small.",
        advice=trainer
        or f"Divide by the number of micro-batches in the window, which is {held} for the last window.",
        fix=lambda at: one_line_fix(run, site, at, computed) if trainer else divided_by_its_window(at) or (),
        count=len(short),
        evidence={"micro_batches": held, "divided_by": size},
        about=windows[0][0].parameters,
    )


RULE = Rule("GG103", "microbatch-normalization", "error", __doc__ or "", _judge, uneven)
