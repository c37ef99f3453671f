"""A loss is averaged over the wrong number of items.

## What it does
Reads from the graph how a loss was reduced. Reports:

- a mean that is divided by the batch size again;
- a mean over all positions, after a mask or ``ignore_index`` set the losses of some of them to zero;
- a mean over samples *and* classes although the targets are distributions;
- a sum over samples and features that is added, undivided, to a mean over the same samples.

## Why is this bad?
The loss has the wrong scale, and so has the effective learning rate. If the divisor changes from batch to batch,
the weights of the samples change too.

## Example
    loss = (F.cross_entropy(logits, y, reduction="none") * mask).mean()

## Use instead
    loss = (F.cross_entropy(logits, y, reduction="none") * mask).sum() / mask.sum()

## Known limits
A mask is distinguished from other factors by its form: ones, then zeros, along the last dimension. A mean that
leaves out less than 10% of the positions is not reported, and neither is a sum over a constant number of positions.
A sum beside a mean is reported only if its weight is 0.1 or more, because a smaller weight was probably chosen for
the sum. Not found: targets that are padding and not ignored, a mean of means within one loss, and a count of
positions that the loss leaves out.

## Sources
The notes on ``reduction`` in ``torch.nn.functional``; the note on ``kl_div``: "batchmean" gives the divergence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._oracle import Share, shares
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.accumulation._edits import undivided
from gradgate.checker.rules.texts import accumulation as texts
from gradgate.events import Backward, Site, Term

_MOST_KEPT = 0.9  # a mask that leaves out less changes the loss by less than the batch's noise
_BATCH = 16  # a smaller constant may count terms or micro-batches, and equal the batch size by chance
_LEAST_WEIGHT = 0.1  # a smaller weight was chosen for the sum


def _judge(run: Run) -> Iterator[Finding]:
    micro = (number for _, _, windows in run.accumulating() for _, numbers in windows for number in numbers)
    several = {run.events[number].site for number in micro}
    read = [event for event in run.of(Backward) if event.seen and event.terms]
    for site, events in grouped((event.site, event) for event in read).items():
        if site not in several and len(events) <= max(
            run.stepping.values(), default=0
        ):  # each has its own step
            yield from _divided_again(events)
        yield from _over_masked(events)
        yield from _over_classes(events)
        yield from _sum_beside_mean(events)


def _divided_again(events: list[Backward]) -> Iterator[Finding]:
    found: list[tuple[Share, float, Site]] = []
    for event in events:
        parts = shares(event.terms)
        times = Counter(site for share in parts for site in {where for _, where in share.divisors(1)})
        for share in (part for part in parts if part.factor is not None):  # only means
            batch = share.term.sizes[0] if share.term.sizes else 0
            divisions = [pair for pair in share.divisors(1) if pair[0] == batch > 1 and times[pair[1]] == 1]
            found += [(share, *division) for division in divisions]
    known = len({size for _, size, _ in found}) > 1 or (bool(found) and found[0][1] >= _BATCH)
    if known and len(found) >= 2 and len(found) * 2 >= len(events):
        share, number, where = found[0]
        yield RULE.say(
            where,
            texts.DIVIDED_AGAIN,
            fix=undivided,
            count=len(found),
            items=share.items or number,
            divided_by=number,
        )


def _over_masked(events: list[Backward]) -> Iterator[Finding]:
    terms = [term for event in events for term in event.terms if term.masked]
    varied = len({term.sizes for term in terms}) > 1
    found = [(term, site) for term in terms if (site := _averaged_at(term, varied=varied))]
    parts = [term.masked or 0.0 for term, _ in found]
    if len(parts) >= 2 and max(parts) - min(parts) >= 1e-6 and min(parts) <= _MOST_KEPT:
        term = found[0][0]
        yield RULE.say(
            max((site for _, site in found), key=len),
            texts.OVER_MASKED,
            count=len(parts),
            items=term.items if term.kind == "mean" else math.prod(term.sizes),
            least=100 * min(parts),
            most=100 * max(parts),
        )


def _averaged_at(term: Term, *, varied: bool) -> Site:
    """Return where a term becomes a mean over all positions, or () if it does not.

    A sum over tensors of one size may be divided by a constant on purpose.
    """
    divisions = [(number, site) for op, number, site in term.factors if op == "div"]
    if any(math.isclose(number, term.masked or 0, rel_tol=1e-4) for number, _ in divisions):
        return ()  # a division by the mean of the mask follows
    if term.kind == "mean":
        return term.site
    return next((site for number, site in divisions if varied and number == math.prod(term.sizes)), ())


def _over_classes(events: list[Backward]) -> Iterator[Finding]:
    terms = [term for event in events for term in event.terms if (term.classes or 0) > 1]
    if len(terms) >= 2 and terms[0].items is not None:
        where = max((term.site for term in terms), key=len)
        yield RULE.say(
            where, texts.OVER_CLASSES, severity="warning", count=len(terms), classes=terms[0].classes
        )


def _sum_beside_mean(events: list[Backward]) -> Iterator[Finding]:
    """Report a sum over samples and features that is added, undivided, to a mean over the same samples.

    Sums over one dimension are left out: they may be sums over an episode, or over losses per sample. A penalty of
    parameters shares no operations with the other term.
    """
    found: list[tuple[Term, Term]] = []
    for event in events:
        sums = [
            term for term in event.terms if term.kind == "sum" and len(term.sizes) > 1 and _is_undivided(term)
        ]
        means = [
            term for term in event.terms if term.kind == "mean" and term.sizes and 0 < abs(term.weight) <= 1
        ]
        found += [(sums[0], means[0])] if sums and means else []
    if len(found) >= 2 and len(found) * 2 >= len(events) and any(term.shared for term, _ in found):
        total, mean = found[0]
        yield RULE.say(
            total.site,
            texts.SUM_BESIDE_MEAN,
            severity="warning",
            count=len(found),
            batch=mean.sizes[0],
            summed=list(total.sizes),
            averaged=list(mean.sizes),
        )


def _is_undivided(term: Term) -> bool:
    whole = all(op == "mul" or abs(number) <= 1 for op, number, _ in term.factors)
    return whole and _LEAST_WEIGHT <= abs(term.weight) <= 1


RULE = Rule("GG104", "loss-reduction", "error", __doc__ or "", _judge)
