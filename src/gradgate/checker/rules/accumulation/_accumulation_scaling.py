"""The accumulated sum isn't divided, or is divided by the wrong number.

## What it does
Reads from each loss's graph the factor by which a mean is multiplied before ``backward()``, and adds up these
factors over the micro-batches of a window. The gradient equals that of the whole batch only if the factors add up
to 1, so other sums are reported. Also reports means that are divided by the number of micro-batches although
``gradgate.Accumulator``, Lightning's or transformers' ``Trainer``, or ``Accelerator.backward()`` already divides.
Under Accelerate's ``accumulate()``, reports calls of ``loss.backward()``, which doesn't divide.

## Why is this bad?
Gradients add up: N micro-batches give N times the gradient of their mean. With SGD the step is N times too long.
Clipping removes almost all of the gradient, and weight decay becomes weaker relative to the gradient.

## Example
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()          # four means are added
        if (i + 1) % 4 == 0:
            optimizer.step()

## Use instead
        (loss_fn(model(x), y) / 4).backward()

or call ``update.backward(loss, count=len(y))`` of ``gradgate.Accumulator``, which divides once by the number of
items in the window.

## Known limits
A factor that is not a simple fraction is assumed to be a loss weight. Losses that are sums over items are assumed
to be intended. So are undivided means in two cases: in a loop over a literal tuple, list or dict (such as a list of
tasks), and with ``retain_graph=True``, which several losses of one forward pass need. A term is not reported as
undivided if its weight is computed by a division, because that division may be the missing one.

## Sources
docs/exactness.md
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._loss_weights import Share, columns_of
from gradgate.checker.analysis._queries import attacked_loss, condition_around
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import text_of
from gradgate.checker.analysis._trainers import one_line
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.accumulation._divisor_edits import (
    accelerator_around,
    by_the_accelerator,
    divided,
    divided_by,
    one_line_fix,
    undivided,
    undivided_argument,
)
from gradgate.checker.rules.accumulation._loops import (
    is_in_a_loop_of_its_own,
    is_of_several_networks,
    is_once_per_batch,
    is_over_kinds,
)
from gradgate.checker.rules.accumulation._spanning_divisor import spanning_divisors
from gradgate.checker.rules.accumulation._undivided_terms import divided_apart, undivided_term
from gradgate.events import Differentiated, DividedTwice, Frame, Ids, Reduced, Site, Term

_WHY = (
    "Gradients add up: the update equals the update of the whole batch only if the micro-batches' weights "
    "add up to 1."
)
_TRAINERS = {
    "accelerate": "Accelerate's backward()",
    "lightning": "Lightning's Trainer",
    "transformers": "the Trainer",
}
_TO_A_TRAINER = (
    "Return the sum of the loss divided by the number of items in the whole window. transformers passes this "
    "number to compute_loss_func as num_items_in_batch."
)


def _judge(run: Run) -> Iterator[Finding]:
    yield from _divided_by_hand(run)
    yield from spanning_divisors(run, RULE)
    if any(event.parameters for event in run.of(Reduced)):
        return  # gradients are summed over ranks by hand: the divisor must include the number of ranks
    meta = bool(run.of(Differentiated))
    for _, site, windows in run.accumulating():
        again = _divided_again(run, windows)
        if again is not None:
            yield again
            continue
        size = Counter(len(micro) for _, micro in windows).most_common(1)[0][0]
        full = [(window, micro) for window, micro in windows if len(micro) == size > 1]
        if meta or not full or any(len({run.backward(n).reached for n in micro}) > 1 for _, micro in full):
            continue  # several losses (between windows, layers may be unfrozen)
        if any(attacked_loss(run, window, micro) is not None for window, micro in full):
            continue  # cross-loss-leak reports an attack's gradients
        if any(all(run.backward(number).retain for number in micro[:-1]) for _, micro in full):
            continue  # several losses of one forward pass
        apart = bool(divided_apart(run, *full[0]))
        if undivided := undivided_term(run, full[:8], size):
            yield _one_undivided(*undivided, site, size, len(full), full[0][0].parameters, apart)
            continue
        if apart and not any(op == "div" for term in run.terms(full[0][1][0]) for op, _, _ in term.factors):
            continue  # the loss's weight may include the division
        several = [columns_of(run, window, micro) for window, micro in full[:8]]
        terms = [(column, len(columns)) for columns in several for column in columns]
        means = [each for each in terms if all(share.factor is not None for share in each[0])]
        first = full[0][0]
        if means and all(_is_wrong(column, size, count) for column, count in means):
            # A divisor that only some terms have may be their weight: `cross_entropy + 0.1 * distance`.
            columns = [column for columns in several for column in _without_weights(columns)]
            known = (column for column in columns if all(share.factor is not None for share in column))
            column = min(known, key=lambda column: len(column[0].divisors))
            apart = all(is_of_several_networks(run, micro) for _, micro in full)
            if not apart and not is_over_kinds(site, run.events[first.step].site):
                say = partial(RULE.finding, why=_WHY, count=len(full), about=first.parameters)
                found = _finding(run, site, first, column, size, say)
                calls = sorted({innermost(run.events[number].site).line for number in full[0][1]})
                yield from found if len(calls) == 1 else map(partial(_at_each_of, calls), found)


def _at_each_of(calls: list[int], found: Finding) -> Finding:
    """Return the finding with advice that names all backward lines, instead of an edit of one of them."""
    lines = f"{', '.join(map(str, calls[:-1]))} and {calls[-1]}"
    return replace(found, fix=(), advice=f"{found.advice.rstrip('.')}, for each of the lines {lines}.")


def _one_undivided(
    term: Term, where: Site, backward: Site, size: int, windows: int, ids: Ids, apart: bool
) -> Finding:
    """Report a term that isn't divided. ``apart``: whether another line back-propagates the divided terms."""
    computed = f" (line {innermost(term.site).line})" if term.site else ""
    return RULE.finding(
        where or backward,
        f"Each of {size} micro-batches adds one term of the loss{computed} with full weight, but divides the other "
        f"terms by {size}: the term counts {size} times as much as in the loss of the whole batch.",
        why=_WHY,
        advice=f"Divide this loss by {size}, too."
        if apart
        else "Divide the whole loss, after all terms are added.",
        fix=lambda at: divided(at, size) if apart else (),
        severity=None if apart else "warning",
        count=windows,
        evidence={"micro_batches": size},
        about=ids,
    )


def _divided_by_hand(run: Run) -> Iterator[Finding]:
    """Report means that are divided by the number of micro-batches and then passed to gradgate's accumulator."""
    times = Counter(event.site for event in run.of(DividedTwice))
    for site, number in {event.site: event.micro_batches for event in run.of(DividedTwice)}.items():
        yield RULE.finding(
            site,
            f"The loss is divided by {number}, the number of micro-batches, and the update divides again by "
            f"the total count: the gradient is {number} times too small.",
            why="An accumulator adds sums and counts, and divides once. Pass it each mean without a division.",
            advice="Pass the loss without the division.",
            fix=undivided_argument,
            count=times[site],
            evidence={"micro_batches": number},
        )


def _is_wrong(column: list[Share], size: int, terms: int) -> bool:
    """Return whether a term's means don't add up to 1, and no loss weight explains the difference."""
    if abs(_total(column) - 1) < 1e-3:
        return False
    # If one divisor is the window's size, the other factors are loss weights. With two, something is divided twice.
    times = sum(abs(number - size) < 1e-6 * size for number, _ in column[0].divisors)
    # Except if one of the two averages terms or is a loss weight: `0.5 * squares / 2`.
    weights = [number for op, number, _ in column[0].numbers if op != "div"]
    explained = terms == size or sum(abs(abs(number) - 1 / size) < 1e-6 for number in weights) == 1
    return times != 1 and not (times == 2 and explained)


def _without_weights(columns: list[list[Share]]) -> list[list[Share]]:
    """Return the shares without terms' own weights, like those in ``alpha * a + (1 - alpha) * b``."""
    if len(columns) < 2:
        return columns
    shared = set(columns[0][0].numbers).intersection(*(column[0].numbers for column in columns))

    def without(share: Share) -> Share:
        weights = [
            each
            for each in share.numbers
            if each[0] != "div"
            and 0 < abs(each[1]) < 1
            and each[2]
            and (each not in shared or abs(abs(each[1]) * len(columns) - 1) < 1e-6)
        ]
        rest = tuple(each for each in share.numbers if each not in weights)
        times = math.prod(abs(number) for _, number, _ in weights)
        return replace(share, numbers=rest, factor=share.factor and share.factor / times)

    return [[without(share) for share in column] for column in columns]


def _total(column: list[Share]) -> float:
    return sum(share.factor or 0.0 for share in column)


def _finding(
    run: Run, site: Site, window: StepWindow, column: list[Share], size: int, say: Callable[..., Finding]
) -> Iterator[Finding]:
    whole = [(number, where) for number, where in column[0].divisors if abs(number - round(number)) < 1e-6]
    total, by_trainer = _total(column), "backward" not in text_of(innermost(site))
    say = partial(say, evidence={"micro_batches": size, "weights_add_up_to": total})
    if whole:
        trainer = _TRAINERS.get(run.backward(window.micro[0]).trainer, "")
        own = [each for each in whole if each[1] and innermost(each[1]) != innermost(site)]
        twice = len(whole) == 2 and len(own) == 1 and bool(trainer)
        number, where = own[0] if twice else whole[0]
        if abs(number - size) == 1 and len(whole) == 1:
            return  # the divisor is right: the window's size is off by 1
        by = " and by ".join(f"{value:g}" for value, _ in whole)
        yield say(
            where or _written_at(run, number) or site,
            f"{size} micro-batches are added up and each is divided by {by}: the gradient is {total:.3g} times "
            "the gradient of the whole batch.",
            advice=f"Don't divide here: {trainer} already divides."
            if twice
            else f"Divide once, by the number of micro-batches in the window, {size}.",
            fix=undivided if twice else lambda at: divided_by(at, size) if len(whole) == 1 else (),
        )
        return
    undivided_means = (
        f"{size} micro-batches are added up without dividing their means: the gradient is {total:.3g} times the "
        "gradient of the whole batch"
    )
    accelerator = accelerator_around(innermost(site))
    if accelerator:
        yield say(
            site,
            f"{undivided_means}, because only {accelerator}.backward() divides.",
            advice=f"Call {accelerator}.backward() with the loss.",
            fix=partial(by_the_accelerator, accelerator=accelerator),
        )
        return
    step = run.events[window.step].site
    computed = _computed_at(column, site) if by_trainer else ()
    meant = condition_around(step, site) is not None or is_in_a_loop_of_its_own(site, step) or bool(computed)
    meant = meant or (by_trainer and is_once_per_batch(run, site))
    if meant or abs(total - size) <= 1e-3:
        yield say(
            column[0].averaged_at or computed or site,
            f"{undivided_means}.",
            advice=one_line(run, site, computed)
            or (_TO_A_TRAINER if by_trainer else f"(loss / {size}).backward()"),
            fix=lambda at: one_line_fix(run, site, at) if by_trainer else divided(at, size),
            severity=None if meant else "info",
        )


def _written_at(run: Run, number: float) -> Frame | None:
    """Return where the script divided gradients by a number."""
    for event in run.written("gradient"):
        if event.site and abs((event.factor or 0) * number - 1) < 1e-6:
            return innermost(event.site)
    return None


def _divided_again(run: Run, windows: list[tuple[StepWindow, list[int]]]) -> Finding | None:
    """Report a gradient sum that is divided at each micro-batch, so earlier micro-batches are divided again."""
    uneven = 0
    for window, micro in windows:
        factors = {part.factor for part in window.fresh if part.backward in micro and not part.touched}
        uneven += len(micro) > 1 and len(factors) > 1 and max(factors) < 1
    write = next((each for each in run.written("gradient") if each.factor), None)
    if not uneven or write is None or not write.factor:
        return None
    size = max(len(micro) for _, micro in windows)
    return RULE.finding(
        write.site,
        f"The gradient sum is multiplied by {write.factor:.3g} after each of {size} micro-batches, so the "
        f"first micro-batch counts {write.factor ** (size - 1):.2g} times as much as the last.",
        why=_WHY,
        advice="Divide once, after the last micro-batch and before the step, or divide each loss.",
        count=uneven,
        evidence={"factor": write.factor, "micro_batches": size},
        about=windows[0][0].parameters,
    )


def _computed_at(column: list[Share], site: Site) -> Site:
    """Return where the script computes the loss that a trainer back-propagates, or () if the script doesn't."""
    computed = {share.term.site for share in column}
    where = computed.pop() if len(computed) == 1 else ()
    return where if where and where[0] != innermost(site) else ()


RULE = Rule("GG102", "accumulation-scaling", "error", __doc__ or "", _judge)
