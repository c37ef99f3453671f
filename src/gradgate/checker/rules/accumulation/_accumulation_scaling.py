"""The accumulated sum isn't divided, or is divided by the wrong number.

## What it does
Reads from each loss's graph what its mean is multiplied by before it is back-propagated, and adds that up over
the micro-batches of a window. For the update of the whole batch the sum is 1. Reports means that are divided by the
number of micro-batches and then passed to ``gradgate.Accumulator``, which divides by all counts.

## Why is this bad?
Gradients add: N micro-batches give N times the gradient of their mean. With SGD the step is N times too long (or
too short), clipping removes almost all of it, and the relative weight of weight decay changes.

## Example
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()          # a mean, four times
        if (i + 1) % 4 == 0:
            optimizer.step()

## Use instead
        (loss_fn(model(x), y) / 4).backward()

or ``update.backward(loss, count=len(y))`` of ``gradgate.Accumulator``, which divides once, by the items of
the window.

## Known limits
A factor that is not a simple fraction is assumed to be a loss weight. Sums are assumed to be intended, as are
means of different tasks that are added without a division.

## Sources
docs/exactness.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._loss_weights import Share, columns_of
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import condition_around, loops_around, text_of
from gradgate.checker.analysis._trainers import one_line
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.accumulation._divided_by_hand import divided_by_hand
from gradgate.checker.rules.accumulation._divisor_edits import (
    accelerator_around,
    by_the_accelerator,
    divided,
    divided_by,
    undivided_here,
)
from gradgate.checker.rules.accumulation._spanning_divisor import spanning_divisors
from gradgate.checker.rules.accumulation._trainer_edit import one_line_fix
from gradgate.checker.rules.accumulation._undivided_terms import undivided
from gradgate.events import (
    Backward,
    Differentiated,
    EpochEnded,
    EpochStarted,
    Frame,
    Reduced,
    Site,
    Term,
    Written,
)

_WHY = (
    "Gradients add up: the update is that of the whole batch only if the micro-batches' weights add up to 1."
)
_TO_A_TRAINER = (
    "Return the sum of the loss divided by the items of the whole window; transformers passes their number to "
    "compute_loss_func as num_items_in_batch."
)


def _judge(run: Run) -> Iterator[Finding]:
    yield from divided_by_hand(run, RULE)
    yield from spanning_divisors(run, RULE)
    if any(event.parameters for event in run.of(Reduced)):
        return  # ranks are summed by hand: their number belongs in the divisor
    meta = bool(run.of(Differentiated))
    for _, site, windows in run.accumulating():
        divided = _divided_again(run, site, windows)
        if divided is not None:
            yield divided
            continue
        size = Counter(len(micro) for _, micro in windows).most_common(1)[0][0]
        full = [(window, micro) for window, micro in windows if len(micro) == size > 1]
        if not full or any(len({run.backward(n).reached for n in micro}) > 1 for _, micro in full):
            continue  # several losses; from one window to the next, layers may be unfrozen
        beside = undivided(run, full[:8], size)
        if beside is not None and not meta:
            yield _undivided_term(beside, site, size, len(full), full[0][0])
            continue
        windows_columns = [columns_of(run, window, micro) for window, micro in full[:8]]
        found = [column for columns in windows_columns for column in columns]
        wrong = [
            column
            for columns in windows_columns
            for column in columns
            if _is_wrong(column, size, len(columns))
        ]
        means = [column for column in found if all(share.factor is not None for share in column)]
        if means and len(wrong) == len(means) and not meta:
            finding = _finding(run, site, full, wrong[0], size)
            if finding is not None:
                yield finding


def _undivided_term(
    found: tuple[Term, Site], site: Site, size: int, times: int, window: StepWindow
) -> Finding:
    term, where = found
    computed = f", that of line {innermost(term.site).line}," if term.site else ""
    return RULE.finding(
        where or site,
        f"Each of {size} micro-batches adds one term of the loss{computed} with full weight, the others divided by "
        f"{size}: it counts {size} times as much as in the loss of the whole batch.",
        why=_WHY,
        advice="Divide the whole loss, after all its terms are added.",
        severity="warning",
        count=times,
        evidence={"micro_batches": size},
        about=window.parameters,
    )


def _is_wrong(column: list[Share], size: int, terms: int) -> bool:
    """Return whether a term's means don't add up to 1, and no weight of the loss explains it."""
    if any(share.factor is None for share in column):
        return False
    total = sum(share.factor or 0.0 for share in column)
    if abs(total - 1) < 1e-3:
        return False
    # Divided by the window once, the other factors weigh the loss; divided by it twice, they don't.
    times = sum(abs(number - size) < 1e-6 * size for number, _ in column[0].divisors)
    if times == 2 and (terms == size or _weighs(column[0], 1 / size)):
        return False  # one of the two averages as many terms, or weighs the loss: `0.5 * squares / 2`
    return times != 1


def _weighs(share: Share, fraction: float) -> bool:
    """Return whether a term is multiplied by a fraction once, and otherwise divided."""
    return sum(op != "div" and abs(abs(number) - fraction) < 1e-6 for op, number, _ in share.numbers) == 1


def _finding(
    run: Run, site: Site, full: list[tuple[StepWindow, list[int]]], column: list[Share], size: int
) -> Finding | None:
    whole = [(number, where) for number, where in column[0].divisors if abs(number - round(number)) < 1e-6]
    total = sum(share.factor or 0.0 for share in column)
    step = run.events[full[0][0].step].site
    meant = condition_around(step, site) is not None or _in_a_loop_of_its_own(site, step)
    facts = {"micro_batches": size, "weights_add_up_to": total}
    if not whole:
        by_trainer = "backward" not in text_of(innermost(site))
        computed = _computed_at(column, site) if by_trainer else ()
        meant = meant or bool(computed) or (by_trainer and _once_per_batch(run, site))
        accelerator = accelerator_around(innermost(site))
        if accelerator:
            return RULE.finding(
                site,
                f"{size} micro-batches are added up and their means are not divided: the gradient is {total:.3g} "
                f"times that of the whole batch, since {accelerator} divides only in its own backward().",
                why=_WHY,
                advice=f"Call {accelerator}.backward() with the loss.",
                fix=partial(by_the_accelerator, accelerator=accelerator),
                count=len(full),
                evidence=facts,
                about=full[0][0].parameters,
            )
        if not meant and abs(total - size) > 1e-3:
            return None
        return RULE.finding(
            column[0].averaged_at or computed or site,
            f"{size} micro-batches are added up and their means are not divided: the gradient is {total:.3g} times "
            "that of the whole batch.",
            why=_WHY,
            advice=one_line(run, site) or (_TO_A_TRAINER if by_trainer else f"(loss / {size}).backward()"),
            fix=lambda at: one_line_fix(run, site, at) if by_trainer else divided(at, size),
            severity=None if meant else "info",
            count=len(full),
            evidence=facts,
            about=full[0][0].parameters,
        )
    own = [each for each in whole if each[1] and innermost(each[1]) != innermost(site)]
    twice = len(whole) == 2 and len(own) == 1 and run.backward(full[0][1][0]).trainer == "accelerate"
    number, where = own[0] if twice else whole[0]
    if abs(number - size) == 1 and len(whole) == 1:
        return None  # the window is one off, not the divisor
    by = " and by ".join(f"{value:g}" for value, _ in whole)
    return RULE.finding(
        where or _written_at(run, number) or site,
        f"{size} micro-batches are added up and each is divided by {by}: the gradient is {total:.3g} times that "
        "of the whole batch.",
        why=_WHY,
        advice="Don't divide here: Accelerate's backward() does."
        if twice
        else f"Divide by the number of micro-batches in the window, {size}, and once.",
        fix=undivided_here if twice else lambda at: divided_by(at, size) if len(whole) == 1 else (),
        count=len(full),
        evidence=facts,
        about=full[0][0].parameters,
    )


def _written_at(run: Run, number: float) -> Frame | None:
    """Return where gradients were divided by a number."""
    for event in run.of(Written):
        if event.target == "gradient" and event.site and abs((event.factor or 0) * number - 1) < 1e-6:
            return innermost(event.site)
    return None


def _divided_again(run: Run, site: Site, windows: list[tuple[StepWindow, list[int]]]) -> Finding | None:
    """Report a division of the running sum at every micro-batch: it divides the earlier ones again."""
    uneven = 0
    for window, micro in windows:
        parts = [part for part in window.fresh if part.backward in micro and not part.touched]
        factors = {part.factor for part in parts}
        uneven += len(micro) > 1 and len(factors) > 1 and max(factors) < 1
    writes = [event for event in run.of(Written) if event.target == "gradient" and event.factor]
    if not uneven or not writes:
        return None
    size = max(len(micro) for _, micro in windows)
    return RULE.finding(
        writes[0].site,
        f"The running sum is multiplied by {writes[0].factor:.3g} after each of {size} micro-batches, so the first "
        f"counts {writes[0].factor ** (size - 1):.2g} times what the last one does.",
        why=_WHY,
        advice="Divide once, after the last micro-batch and before the step, or divide each loss.",
        count=uneven,
        evidence={"factor": writes[0].factor, "micro_batches": size},
        about=windows[0][0].parameters,
    )


def _computed_at(column: list[Share], site: Site) -> Site:
    """Return where the user's code computes the loss that a trainer back-propagates, or () if it doesn't."""
    computed = {share.term.site for share in column}
    where = computed.pop() if len(computed) == 1 else ()
    return where if where and where[0] != innermost(site) else ()


def _once_per_batch(run: Run, site: Site) -> bool:
    """Return whether a line makes one backward call for each batch of some epoch: there are no other losses."""
    starts = [(n, each) for n, each in run.numbered(EpochStarted) if isinstance(each, EpochStarted)]
    for place, (number, event) in enumerate(starts):
        # A loader that fetches ahead has ended before the last batches are used.
        later = (n for n, each in starts[place + 1 :] if each.loader == event.loader)
        epoch = run.events[number : next(later, None)]
        ended = [each for each in epoch if isinstance(each, EpochEnded) and each.loader == event.loader]
        calls = sum(isinstance(each, Backward) and each.site == site for each in epoch)
        if ended and calls == ended[0].batches > 0:
            return True
    return False


def _in_a_loop_of_its_own(site: Site, step: Site) -> bool:
    """Return whether a line is in a loop that ends before the step."""
    steps = {(frame.file, frame.function): frame.line for frame in step}
    for frame in site:
        loops, line = loops_around(frame), steps.get((frame.file, frame.function))
        if line is not None:
            return bool(loops) and line > (loops[0].end_lineno or line)
        if loops:
            return True
    return False


RULE = Rule("GG102", "accumulation-scaling", "error", __doc__ or "", _judge)
