"""A learning-rate schedule is advanced too often, too rarely, too early, or never.

## What it does
Compares how often a scheduler is advanced with its optimizer's steps, with the passes over the data, and with the
schedule's own length (``T_max``, ``total_steps``, the last milestone, the numbers that a ``LambdaLR``'s function
was given). Reports a scheduler that is never advanced, one that is advanced before the first step, one that is
built anew again and again, one that runs through its length several times too fast (a length in epochs advanced at
each batch, a length in updates advanced at each micro-batch) and one that is too slow (a length in batches
advanced once an epoch).

## Why is this bad?
The learning rate is not what the schedule says: it stays at its warm-up value, or is gone after a fraction of the
run. The loss still falls, only worse.

## Example
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in loader:
            loss_fn(model(x), y).backward()
            optimizer.step()
            scheduler.step()             # T_max counts epochs, this counts batches

## Use instead
    for epoch in range(epochs):
        for x, y in loader:
            ...
            optimizer.step()
        scheduler.step()                 # or T_max=epochs * len(loader), and advance after each step

## Known limits
A run that is stopped early is not blamed for what it did not come to. Without a length, and where no DataLoader
shows the epochs, only a rate that is all but zero for a large part of the run is reported. Schedules that are
written by hand, without ``torch.optim.lr_scheduler``, are not followed.

## Sources
https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate: "Learning rate scheduling should be
applied after optimizer's update".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scheduler_usage import (
    Pace,
    divides,
    paces,
    speaks_of_steps,
    stepped_in_text,
    unit_of,
)
from gradgate.checker.analysis._source import loops_around
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Scheduled, Site, Stepped

_WHY = "The rate is not what the schedule says: it is at the wrong place of its course for most of the run."
_DECAYS = ("StepLR", "MultiStepLR", "ExponentialLR", "MultiplicativeLR")
_LONG = ("CosineAnnealingLR", "OneCycleLR", "PolynomialLR", "LambdaLR", "SequentialLR")
_GONE = 1e-3  # of the highest rate


def _judge(run: Run) -> Iterator[Finding]:
    for optimizer, several in paces(run).items():
        if len(several[0].steps) < 2:
            continue
        advanced = [pace for pace in several if pace.calls]
        if not advanced:
            if not any(pace.inner for pace in several):
                yield from _never(run, optimizer, several[-1])
            continue
        again = _made_again(run, several)
        if again is not None:
            yield again
            continue
        for pace in advanced:
            finding = _early(run, pace) or _fast(run, pace) or _slow(run, pace)
            if finding is not None:
                yield finding


def _never(run: Run, optimizer: int, pace: Pace) -> Iterator[Finding]:
    if run.ended != "finished" or stepped_in_text(run, pace.made):
        return
    rate = max(pace.made.lr, default=0.0)
    yield RULE.finding(
        pace.made.site,
        f"{pace.made.kind} is never advanced: {run.optimizer(optimizer)} makes {len(pace.steps)} steps, all at its "
        f"first rate, {rate:g}.",
        why=_WHY,
        advice="Call scheduler.step() after optimizer.step(): once an epoch, or once a step, as its length counts.",
        evidence={"steps": len(pace.steps), "advanced": 0},
    )


def _made_again(run: Run, several: list[Pace]) -> Finding | None:
    """Report schedulers that one line builds again and again, each before the last has got anywhere."""
    by_site: dict[Site, list[Pace]] = {}
    for pace in several:
        by_site.setdefault(pace.made.site, []).append(pace)
    for site, same in by_site.items():
        if len(same) < 3 or any(len(pace.calls) > 1 or pace.inner for pace in same):
            continue
        steps = same[0].steps
        if all(any(a.number < step < b.number for step in steps) for a, b in pairwise(same)):
            return RULE.finding(
                site,
                f"{same[0].made.kind} is built {len(same)} times, and each is advanced once at most: the schedule "
                "begins anew every time.",
                why=_WHY,
                advice="Build the scheduler once, before the loop.",
                count=len(same),
                evidence={"built": len(same)},
            )
    return None


def _early(run: Run, pace: Pace) -> Finding | None:
    """Report a scheduler that is advanced before its optimizer's first step, in the loop that makes the steps."""
    first = run.events[pace.calls[0]]
    if pace.calls[0] > pace.steps[0] or pace.share_of_steps_between() < 0.99:
        return None
    if not _one_loop(first.site, run.events[pace.steps[0]].site) or not isinstance(first, Scheduled):
        return None
    before, after = max(pace.made.lr, default=0.0), max(first.lr, default=0.0)
    if before == 0 or abs(after - before) < 0.01 * before:
        return None
    return RULE.finding(
        first.site,
        f"The schedule is advanced before the first step: its first rate, {before:g}, is never used, and training "
        f"begins at {after:g}.",
        why="Each step has the rate that was meant for the one after it.",
        advice="Move scheduler.step() behind the steps it belongs to: after optimizer.step(), or to the epoch's "
        "end.",
        count=len(pace.calls),
        evidence={"first": before, "used": after},
    )


def _one_loop(one: Site, other: Site) -> bool:
    """Say whether two lines are reached from within one loop."""
    loops = {id(loop) for frame in one for loop in loops_around(frame)}
    return any(id(loop) in loops for frame in other for loop in loops_around(frame))


def _fast(run: Run, pace: Pace) -> Finding | None:
    if pace.made.periodic or len(pace.calls) < 2:
        return None
    if pace.made.kind == "ReduceLROnPlateau":
        return _impatient(run, pace)
    return _at_micro_batches(run, pace) or _at_batches(run, pace) or _soon_over(run, pace)


def _impatient(run: Run, pace: Pace) -> Finding | None:
    """Report a plateau's patience, meant in epochs, that is spent in batches."""
    patience = pace.made.horizon
    if (
        patience is None
        or patience >= pace.per_epoch
        or pace.epochs < 2
        or len(pace.calls) < 0.9 * len(pace.steps)
    ):
        return None
    said = f"Its patience of {patience:g} is spent in batches: it is advanced {pace.each} in {pace.epochs} epochs."
    return _finding(run, pace, said, "after each epoch, with the validation loss")


def _at_micro_batches(run: Run, pace: Pace) -> Finding | None:
    """Report a schedule that goes on at micro-batches without a step, and is over far too soon."""
    kind, length, calls = pace.made.kind, pace.made.horizon, len(pace.calls)
    if calls < 1.5 * len(pace.steps) or pace.share_of_steps_between() >= 0.8:
        return None
    over = length is not None and calls >= 1.5 * length
    if length is not None and 2 * length >= calls and not (kind in _LONG and _near(length, len(pace.steps))):
        return None
    if not (over and kind in (*_LONG, "MultiStepLR")) and not _gone(run, pace):
        return None
    known = (
        f", and has run its course of {length:g} after {length / calls:.0%} of them"
        if over and length
        else ""
    )
    said = f"{kind} is advanced {pace.each}, at each micro-batch{known}."
    in_epochs = length is not None and length <= pace.epochs
    return _finding(run, pace, said, "once an epoch" if in_epochs else "only where optimizer.step() is")


def _at_batches(run: Run, pace: Pace) -> Finding | None:
    """Report a length in epochs that is counted in batches."""
    kind, length, calls = pace.made.kind, pace.made.horizon, len(pace.calls)
    if length is None or calls < 1.5 * length or kind not in (*_LONG, "MultiStepLR"):
        return None
    as_many = length == pace.epochs if kind in _LONG else length <= pace.epochs and calls >= 3 * pace.epochs
    by_number = run.ended == "finished" and pace.epochs > 0 and as_many
    by_words = unit_of(pace.made) == "epochs" and calls >= 0.9 * len(pace.steps)
    if not by_number and not by_words:
        return None
    said = f"{kind} is {length:g} epochs long and is advanced at each batch, {pace.each}."
    return _finding(run, pace, said, f"once an epoch, or make it {calls} long")


def _soon_over(run: Run, pace: Pace) -> Finding | None:
    """Report a rate that is all but gone for a large part of the run, where each step advances the schedule."""
    kind, length, calls, steps = pace.made.kind, pace.made.horizon, len(pace.calls), len(pace.steps)
    if calls < 0.9 * steps or steps < 8:
        return None
    rates = _rates(run, pace)
    cut = kind == "MultiStepLR" and bool(rates) and rates[-1] <= 0.1 * max(pace.made.lr, default=0.0)
    if cut and length is not None and length <= calls / 5 and steps >= 12 and run.ended == "finished":
        said = (
            f"The last milestone, {length:g}, is reached after {length / calls:.0%} of the run: the schedule is "
            f"advanced {pace.each}."
        )
        return _finding(run, pace, said, "once an epoch, or give the milestones in steps")
    if not _gone(run, pace):
        return None
    low = f"below a thousandth of its highest for {_low(run, pace):.0%} of them"
    said = f"{kind} is advanced {pace.each}, and has brought the rate {low}."
    return _finding(run, pace, said, "once an epoch, or stretch the schedule over all steps")


def _gone(run: Run, pace: Pace) -> bool:
    """Say whether the rate is all but zero for a large part of the steps, or at the end of what only decays."""
    rates = _rates(run, pace)
    if not rates or max(rates) == 0:
        return False
    if _low(run, pace) >= 0.4:
        return True
    decays = pace.made.kind in _DECAYS and pace.per_epoch >= 2 and len(pace.calls) >= 2 * pace.epochs >= 4
    return decays and rates[-1] < _GONE * max(rates)


def _rates(run: Run, pace: Pace) -> list[float]:
    events = [run.events[step] for step in pace.steps]
    return [max(event.lr, default=0.0) for event in events if isinstance(event, Stepped)]


def _low(run: Run, pace: Pace) -> float:
    rates = _rates(run, pace)
    peak = rates.index(max(rates))
    return sum(rate < _GONE * rates[peak] for rate in rates[peak:]) / len(rates)


def _slow(run: Run, pace: Pace) -> Finding | None:
    """Report a length in batches that is counted in epochs."""
    made, calls, steps = pace.made, len(pace.calls), len(pace.steps)
    length = made.horizon
    if made.kind == "LambdaLR" and length is None and steps >= 3 * calls and speaks_of_steps(made):
        said = f"The function of {made.kind} counts steps, and it is advanced {pace.each}."
        return _finding(run, pace, said, "after each optimizer.step(), in the inner loop")
    if made.kind == "OneCycleLR" and length and run.ended == "finished" and 4 * calls <= length:
        said = f"{made.kind} is {length:g} steps long, and the run ends after {calls / length:.0%} of it."
        return _finding(run, pace, said, f"as often as it is long, or make it {calls} long", made.site)
    if made.kind not in _LONG or length is None or steps < 2 * calls or calls > length / 2:
        return None
    if unit_of(made) != "batches":
        return None
    if run.ended == "finished":
        fits = _near(length, steps) or _near(length, len(pace.backwards))
    else:
        fits = pace.epochs > 0 and not divides(made)
    if not fits:
        return None
    said = f"{made.kind} is {length:g} steps long and is advanced {pace.each}."
    return _finding(run, pace, said, "after each optimizer.step(), in the inner loop")


def _near(one: float, other: float) -> bool:
    return other > 0 and 0.8 <= one / other <= 1.25


def _finding(run: Run, pace: Pace, said: str, where: str, at: Site = ()) -> Finding:
    site = at or run.events[pace.calls[-1]].site
    if innermost(site) == innermost(run.events[pace.steps[-1]].site):
        site = pace.made.site  # a library makes the steps and advances the schedule
    calls, steps = len(pace.calls), len(pace.steps)
    return RULE.finding(
        site,
        said,
        why=_WHY,
        advice=f"Call scheduler.step() {where}.",
        count=calls,
        evidence={"advanced": calls, "steps": steps, "epochs": pace.epochs, "length": pace.made.horizon},
    )


RULE = Rule("GG301", "scheduler-cadence", "warning", __doc__ or "", _judge)
