"""The accumulated sum isn't divided, or is divided by the wrong number.

## What it does
Reads from each loss's graph the factor by which a mean is multiplied before ``backward()``, and adds up these
factors over the micro-batches of a window. The gradient equals that of the whole batch only if the factors add up
to 1, so other sums are reported. Also reports means that are divided by the number of micro-batches although
``gradgate.Accumulator``, Lightning's or transformers' ``Trainer``, or ``Accelerator.backward()`` already divides.

## Why is this bad?
Gradients add up: N micro-batches give N times the gradient of their mean. With SGD the step is N times too long,
and clipping removes most of the gradient. In Adam, AdamW, RMSprop and Adagrad, which divide by the gradient's own
size, a constant factor cancels but for ``eps``. There, it changes clipping, the ``weight_decay`` of Adam (which is
added to the gradient), and the loss and norm that you log. A factor that differs between windows never cancels.

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
tasks), and with ``retain_graph=True``, which several losses of one forward pass need. A term is not reported if it
is divided by a number in its factors, which may include the division. A penalty that is back-propagated at a line
of its own beside a divided loss is not found, and neither is a sum that is divided by the items of several windows.

## Sources
docs/exactness.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._loops import is_once_per_batch, steps_apart
from gradgate.checker.analysis._oracle import Fit, Kind, fits, total
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._trainers import one_line
from gradgate.checker.excuses import is_over_kinds
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.accumulation._edits import divided, divided_by, undivided
from gradgate.checker.rules.texts import accumulation as texts
from gradgate.events import DividedTwice, Frame, Site

_TRAINERS = {
    "accelerate": "Accelerate's backward()",
    "lightning": "Lightning's Trainer",
    "transformers": "the Trainer",
}


def _judge(run: Run) -> Iterator[Finding]:
    times = Counter(event.site for event in run.of(DividedTwice))
    for site, number in {event.site: event.micro_batches for event in run.of(DividedTwice)}.items():
        yield RULE.say(site, texts.BY_ACCUMULATOR, fix=undivided, count=times[site], micro_batches=number)
    for fit in fits(run):
        if fit.kind is Kind.TERM:
            term = fit.column[0].term
            yield RULE.say(
                next(filter(None, (site for _, _, site in term.factors)), fit.site),
                texts.TERM,
                severity="warning",
                count=fit.count,
                about=fit.parameters,
                micro_batches=fit.size,
                computed=f" (line {innermost(term.site).line})" if term.site else "",
            )
        elif fit.kind is Kind.DIVISOR:
            yield _wrong_divisor(run, fit)
        elif fit.kind is Kind.UNDIVIDED:
            yield from _undivided(run, fit)


def _wrong_divisor(run: Run, fit: Fit) -> Finding:
    share, size = fit.column[0], fit.size
    numbers = share.divisors(size)
    trainer = _TRAINERS.get(run.backward(fit.windows[0][1][0]).trainer, "")
    own = [pair for pair in numbers if pair[1] and innermost(pair[1]) != innermost(fit.site)]
    twice = len(numbers) == 2 and len(own) == 1 and bool(trainer)
    _, where = own[0] if twice else numbers[0]
    return RULE.say(
        where or _written_at(run) or fit.site,
        texts.DIVISOR,
        fix=undivided if twice else partial(divided_by, size=size) if len(numbers) == 1 else (),
        count=fit.count,
        about=fit.parameters,
        micro_batches=size,
        weights_add_up_to=total(fit.column),
        by=" and by ".join(f"{value:g}" for value, _ in numbers),
        advice=f"Don't divide here: {trainer} already divides."
        if twice
        else f"Divide once, by the number of micro-batches in the window, {size}.",
    )


def _written_at(run: Run) -> Frame | None:
    """Return where the script divides gradients by hand."""
    sites = (event.site for event in run.written("gradient") if event.factor and event.site)
    return next(map(innermost, sites), None)


def _undivided(run: Run, fit: Fit) -> Iterator[Finding]:
    step: Site = run.events[fit.windows[0][0].step].site
    if is_over_kinds(fit.site, step):
        return
    trainer, size = one_line(run, fit.site), fit.size
    by_trainer = bool(run.backward(fit.windows[0][1][0]).trainer)
    meant = by_trainer or steps_apart(fit.site, step) or is_once_per_batch(run, fit.site)
    yield RULE.say(
        fit.column[0].averaged_at or (fit.computed if by_trainer else ()) or fit.site,
        texts.UNDIVIDED,
        fix=() if trainer else partial(divided, size=size),
        severity=None if meant else "info",
        count=fit.count,
        about=fit.parameters,
        micro_batches=size,
        weights_add_up_to=total(fit.column),
        advice=trainer or f"(loss / {size}).backward()",
    )


RULE = Rule("GG102", "accumulation-scaling", "error", __doc__ or "", _judge)
