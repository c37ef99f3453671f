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
Differences below 5% are not reported. Differences in fewer than a quarter of the windows are only notes.
Differences due to class weights are warnings if an item counts at least twice as much as another, else notes. Ranks
that exchange their gradients in one flat buffer, or in hooks of their own, are not compared. Counts passed to the
accumulator are compared only in its first backward calls and only on the CPU.

## Sources
docs/exactness.md; "Bugs in LLM training: gradient accumulation fix", Unsloth, 2024.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.analysis._oracle import Fit, Kind, fits, items_of, listed, spread
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._trainers import one_line
from gradgate.checker.rules._rule import Finding, Rule, Severity
from gradgate.checker.rules.accumulation._edits import by_its_window
from gradgate.checker.rules.ranks._means import uneven
from gradgate.checker.rules.texts import accumulation as texts
from gradgate.events import Combined, Miscounted, Site

_LARGE = (
    2.0  # class weights differ in every batch: only an item that counts twice as much is more than a note
)


def _judge(run: Run) -> Iterator[Finding]:
    for event in run.of(Miscounted):
        yield RULE.say(
            event.site,
            texts.MISCOUNTED,
            given=event.count,
            items=event.items,
            first_count=event.first_count,
            first_items=event.first_items,
            times=(event.count / event.items) / (event.first_count / event.first_items),
            advice="Leave out count=: the accumulator reads the count from the loss's graph."
            if event.proved
            else "Pass the number of items in the loss's mean: count=(labels != -100).sum(), with the labels that "
            "the loss receives.",
        )
    comparing = _comparing(run)
    for site, event in comparing.items():
        proved = event.how == "in batch"
        yield RULE.say(
            site,
            texts.PAIRS,
            severity="warning" if proved else "info",
            count=len(run.calls_at(event.backward)) or 1,
            about=event.parameters,
            unless=""
            if proved
            else "If each micro-batch is one sample, such as a graph, leave it as it is. Else: ",
        )
    for fit in fits(run):
        if fit.kind is Kind.UNEQUAL and fit.column[0].term.site not in comparing:
            yield _unequal(run, fit)
        elif fit.kind is Kind.SHORT:
            yield _short(run, fit)


def _comparing(run: Run) -> dict[Site, Combined]:
    """Return the accumulated losses that compare the items of a micro-batch with one another, by their lines."""
    accumulating: set[Site] = {fit.site for fit in fits(run)} | {()}
    events = [event for event in run.of(Combined) if event.how in ("in batch", "pairs")]
    return {event.site: event for event in events if event.site and event.backward in accumulating}


def _unequal(run: Run, fit: Fit) -> Finding:
    column, weighted = fit.column, all(share.term.weighted for share in fit.column)
    counts = [items_of(share) or 0.0 for share in column]
    times = spread(share.per_item for share in column)
    where = column[0].divided_by(len(column))  # the division that gives the micro-batches equal weight
    instead = (
        f"Instead of dividing each mean by {len(column)}, multiply it"
        if where is not None
        else "Multiply each mean"
    )
    rare = fit.count * 4 < len(fit.windows)  # these may be the ends of epochs
    severity: Severity | None = ("warning" if times >= _LARGE else "info") if weighted else None
    return RULE.say(
        where or fit.site,
        texts.UNEQUAL,
        severity="info" if rare else severity,
        count=fit.count,
        about=fit.parameters,
        micro_batches=len(column),
        of=f"whose class weights add up to {listed(counts)}" if weighted else f"of {listed(counts)} items",
        items=counts,
        times=times,
        advice=one_line(run, fit.site)
        or f"{instead} by {'the sum of its class weights' if weighted else 'its number of items'}, (loss * "
        "items).backward(), and divide the gradients once, before any clipping, by the total of the window.",
    )


def _short(run: Run, fit: Fit) -> Finding:
    held, trainer = len(fit.column), one_line(run, fit.site)
    return RULE.say(
        fit.column[0].divided_by(fit.size) or fit.site,
        texts.SHORT,
        fix=() if trainer else by_its_window,
        count=fit.count,
        about=fit.parameters,
        held=f"{held} micro-batch{'' if held == 1 else 'es'}",
        micro_batches=held,
        divided_by=fit.size,
        share=held / fit.size,
        advice=trainer
        or f"Divide by the number of micro-batches in the window, which is {held} for the last window.",
    )


RULE = Rule("GG103", "microbatch-normalization", "error", __doc__ or "", _judge, uneven)
