"""A loss is averaged over the wrong number of items.

## What it does
Reads from the graph how a loss was reduced. Reports:

- a mean that is divided by the batch size again;
- a mean of means over unequal numbers of items;
- a mean over all positions, after a mask or ``ignore_index`` set the losses of some of them to zero;
- a loss that includes targets at positions where the input is an embedding's ``padding_idx``, or next tokens that
  are padding behind an attention mask;
- a sum over shifted positions, divided by a count of the positions before the shift;
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
A mask is distinguished from other factors by its form: ones, then zeros, along the last dimension. A sum over a
constant number of positions is reported only if the divisor names them, such as ``labels.numel()``. A mean that
leaves out less than 10% of the positions is not reported. Padded targets are recognized if their class is the
``padding_idx``, unless this class also occurs elsewhere or ends sequences that have no end token, or if they are
next tokens and an attention mask hides them. A sum beside a mean is reported only if its weight is 0.1 or more,
because a smaller weight was probably chosen for the sum.

## Sources
The notes on ``reduction`` in ``torch.nn.functional``; the note on ``kl_div``: "batchmean" gives the divergence.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._loss_weights import Share, listed, shares, spread
from gradgate.checker.analysis._queries import combinations
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import inside, text_of
from gradgate.checker.analysis._statement import CLOSED, Statement, operand
from gradgate.checker.fixes import Fix, Replace, passing
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.accumulation._divisor_edits import undivided
from gradgate.checker.rules.accumulation._mixed_reductions import mixed_reductions
from gradgate.checker.rules.accumulation._unshifted_count import divided_by_unshifted_count
from gradgate.events import Backward, Combined, Site, Term

_LEAST = 1.05
_SIZE = re.compile(r"size\(0\)|shape\[0\]|len\(|batch_?size|\bbs\b|\bn\b|numel\(\)|\bB\b", re.IGNORECASE)

_POSITIONS = re.compile(r"numel\(|shape\[1\]|size\(1\)|\bT\b")
_MASK = re.compile("mask|valid|keep")
_MOST_KEPT = 0.9
_LEAST_PADDED = 0.05


def _judge(run: Run) -> Iterator[Finding]:
    micro = (number for _, _, windows in run.accumulating() for _, numbers in windows for number in numbers)
    several = {run.events[number].site for number in micro}
    read = [event for event in run.of(Backward) if event.seen and event.terms]
    for site, events in grouped((event.site, event) for event in read).items():
        if site not in several:
            yield from _divided_again(events)
        yield from _mean_of_means(events)
        yield from _over_padding(events)
        yield from _over_classes(events)
        yield from divided_by_unshifted_count(events, RULE)
        yield from mixed_reductions(events, RULE)
    yield from _of_padding(run)


def _divided_again(events: list[Backward]) -> Iterator[Finding]:
    """Report a mean over the batch that is divided by the batch size again."""
    found: list[tuple[Share, float, Site]] = []
    for event in events:
        parts = shares(event.terms)
        times = Counter(site for share in parts for site in {where for _, where in share.divisors})
        for share in (each for each in parts if each.factor is not None):  # only means
            batch = share.term.sizes[0] if share.term.sizes else 0
            divisions = [each for each in share.divisors if each[0] == batch > 1 and times[each[1]] == 1]
            found += [(share, *division) for division in divisions]
    if len(found) < 2 or len(found) * 2 < len(events):
        return
    share, number, where = found[0]
    sizes = {size for _, size, _ in found}
    if len(sizes) == 1 and not _SIZE.search(text_of(innermost(where))):
        return  # the divisor equals the batch size by chance
    yield RULE.finding(
        where,
        f"A mean over {share.items or number:g} items is divided once more by the batch size, {number:g}.",
        why="The gradient is too small by this factor, and an item counts more in a short batch than in a full "
        "one.",
        advice="Remove the division, or use reduction='sum'.",
        fix=undivided,
        count=len(found),
        evidence={"divided_by": sorted(sizes)},
    )


def _mean_of_means(events: list[Backward]) -> Iterator[Finding]:
    """Report a plain mean over the means of parts of different sizes."""
    found: list[tuple[float, list[Share]]] = []
    for event in events:
        means = [share for share in shares(event.terms) if share.term.kind == "mean" and share.term.site]
        for parts in grouped((share.term.site, share) for share in means).values():
            averaged = all(any(number == len(parts) for number, _ in share.divisors) for share in parts)
            alike = len({share.term.sizes[1:] for share in parts}) == 1
            if (
                len(parts) > 1
                and averaged
                and alike
                and spread(share.factor or 0.0 for share in parts) < 1.01
            ):
                found.append((spread(share.items or 1.0 for share in parts), parts))
    hits = sum(times > _LEAST for times, _ in found)
    if hits < 2:
        return
    times, parts = max(found, key=lambda pair: pair[0])
    where = next(where for number, where in parts[0].divisors if number == len(parts))
    counts = [share.items for share in parts]
    yield RULE.finding(
        where or events[0].site,
        f"This is the mean of {len(parts)} means over {listed(counts)} items: an item in the smallest part weighs "
        f"{times:.3g} times as much as an item in the largest.",
        why="The mean of means equals the mean over all items only if all parts have the same number of items.",
        advice="Add up the sums and divide once by the total number of items.",
        count=hits,
        evidence={"items": counts, "times": times},
    )


def _over_padding(events: list[Backward]) -> Iterator[Finding]:
    terms = [term for event in events for term in event.terms if term.masked]
    varied = len({term.sizes for term in terms}) > 1
    found = [(term, site) for term in terms if (site := _averaged_at(term, varied=varied))]
    parts = [term.masked or 0.0 for term, _ in found]
    if len(parts) < 2 or max(parts) - min(parts) < 1e-6 or min(parts) > _MOST_KEPT:
        return
    term = found[0][0]
    size = term.items if term.kind == "mean" else math.prod(term.sizes)
    yield RULE.finding(
        max((site for _, site in found), key=len),
        f"A mean is taken over all {size:g} positions although a mask, or ignored targets, keep only "
        f"{100 * min(parts):.0f} to {100 * max(parts):.0f}% of them.",
        why="The positions left out count as zeros: the more of them a batch has, the smaller the weight of its "
        "items.",
        advice="Divide the sum by the number of positions that are kept: (loss * mask).sum() / mask.sum(), or "
        "total / (labels != ignore_index).sum().",
        fix=_mean_of_kept,
        count=len(parts),
        evidence={"left_by_mask": parts[:16]},
    )


def _averaged_at(term: Term, *, varied: bool) -> Site:
    """Return where a term becomes a mean over all positions, or () if it does not.

    A sum over tensors of one size may be divided by a constant on purpose, so the divisor must name the positions.
    """
    if any(
        op == "div" and math.isclose(number, term.masked or 0, rel_tol=1e-4) for op, number, _ in term.factors
    ):
        return ()  # a division by the mean of the mask follows
    if term.kind == "mean":
        return term.site
    for op, number, site in term.factors:
        if op == "div" and number == math.prod(term.sizes):
            return site if varied or _POSITIONS.search(text_of(innermost(site))) else ()
    return ()


def _over_classes(events: list[Backward]) -> Iterator[Finding]:
    terms = [term for event in events for term in event.terms if (term.classes or 0) > 1]
    if len(terms) < 2 or terms[0].items is None:
        return
    classes = terms[0].classes
    yield RULE.finding(
        _longest(terms),
        f"A mean over samples and {classes} classes also divides the divergence or cross entropy by {classes}.",
        why="The loss is too small by this factor, so it weighs less against other losses.",
        advice="Sum over the classes and take the mean over the samples: reduction='batchmean', or .sum(1).mean().",
        fix=_batchmean,
        severity="warning",
        count=len(terms),
        evidence={"classes": classes},
    )


def _longest(terms: list[Term]) -> Site:
    return max((term.site for term in terms), key=len)


def _of_padding(run: Run) -> Iterator[Finding]:
    """Report losses that include padded targets."""
    for each in combinations(run, ["padding", "hidden"]):
        events = [run.events[number] for number in each.numbers]
        sizes = [event.sizes for event in events if isinstance(event, Combined)]
        parts = [padded / targets for _, padded, targets in sizes]
        index, padded, targets = sizes[parts.index(max(parts))]
        if len(parts) < 2 or max(parts) < _LEAST_PADDED:
            continue
        by_index = each.how == "padding"
        yield RULE.finding(
            each.site,
            f"{padded} of {targets} targets are padding: the input there is {index}, "
            + ("the padding_idx of an embedding," if by_index else "which the attention mask hides,")
            + " and so is the target. The loss includes them.",
            why="The model learns to predict padding, and the more padding a batch has, the smaller the weight of "
            "its other targets.",
            advice=f"Pass ignore_index={index} to the loss."
            if by_index
            else "Give the loss labels that it ignores there: labels[attention_mask == 0] = -100.",
            fix=partial(_ignoring, index=index) if by_index else (),
            **each.measured | {"evidence": {"padded": parts}},
        )


# The fix: another reduction


def _ignoring(at: Statement, index: int) -> Fix:
    losses = [call for name in ("cross_entropy", "nll_loss") for call in at.calls(name)]
    return passing(at.line, losses, f"ignore_index={index}")


def _batchmean(at: Statement) -> Fix:
    match [key.value for call in at.calls("kl_div") for key in call.keywords if key.arg == "reduction"]:
        case [ast.Constant() as given]:
            return (Replace(at.line, ast.unparse(given), '"batchmean"'),)
    return ()


def _mean_of_kept(at: Statement) -> Fix:
    return _mean_of_mask(at) or _by_targets(at)


def _by_targets(at: Statement) -> Fix:
    """Divide by the targets that count: ``total / y.numel()`` becomes ``total / (y != ignore_index).sum()``."""
    calls = [call for call in inside(ast.Call, at.function) if called(call) in ("cross_entropy", "nll_loss")]
    match at.divisions(), calls:
        case [ast.BinOp(_, _, ast.Call(ast.Attribute(given, "numel")) as count)], [
            ast.Call(_, [_, targets, *_])
        ]:
            ignored = [key.value for key in calls[0].keywords if key.arg == "ignore_index"]
            if ast.unparse(given) == ast.unparse(targets) and isinstance(given, CLOSED):
                index = operand(ignored[0]) if ignored else "-100"
                return (Replace(at.line, ast.unparse(count), f"({ast.unparse(given)} != {index}).sum()"),)
    return ()


def _mean_of_mask(at: Statement) -> Fix:
    """Divide by the unmasked items: ``(loss * mask).mean()`` becomes ``(loss * mask).sum() / mask.sum()``."""
    for call in at.calls("mean"):
        match call:
            case ast.Call(ast.Attribute(ast.BinOp(left, ast.Mult(), right) as product), [], []):
                masks = [part for part in (left, right) if _MASK.search(ast.unparse(part))]
                if len(masks) == 1 and isinstance(masks[0], CLOSED):
                    new = f"({ast.unparse(product)}).sum() / {ast.unparse(masks[0])}.sum()"
                    return (Replace(at.line, ast.unparse(call), new if at.value is call else f"({new})"),)
    return ()


RULE = Rule("GG104", "loss-reduction", "error", __doc__ or "", _judge)
