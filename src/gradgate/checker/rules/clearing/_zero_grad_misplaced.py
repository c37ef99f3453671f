"""Gradients are cleared before any step used them.

## What it does
Follows every gradient contribution until a step uses it or it is cleared. Reports backward calls whose gradients
are cleared again and again without having been used, although the optimizer that owns them steps in between; also
where this befalls only a part of the parameters that the step is for.

## Why is this bad?
The work of the backward pass is lost. If all of it is, nothing is trained; if a part is, some losses, micro-batches
or layers silently count for nothing.

## Example
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()

## Use instead
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

## Known limits
What is left of another optimizer's loss (a GAN's generator loss in its discriminator) may be cleared, as may
gradients that only served to get the gradient of an input, and those that are read and put together by hand. A
batch that is skipped now and then is no mistake.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._history import Contribution
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Cleared, Ids, ScalerStepped, Site, Stepped, Written

_WHY = "The gradients are lost before the optimizer sees them: what was computed there trains nothing."


def _judge(run: Run) -> Iterator[Finding]:
    accumulating = {site for _, site, _ in run.accumulating()}
    lines: dict[Site, list[int]] = defaultdict(list)
    for number in run.by_backward:
        if number >= 0:
            lines[run.events[number].site].append(number)
    for site, numbers in lines.items():
        found = _wholly_lost(run, site, numbers, site in accumulating) or _partly_lost(run, site, numbers)
        if found is not None:
            yield found


def _wholly_lost(run: Run, site: Site, numbers: list[int], accumulates: bool) -> Finding | None:
    lost = [number for number in numbers if _is_lost(run, number)]
    share = len(lost) / len(numbers)
    if len(lost) < 2 or share < (0.6 if accumulates else 0.25):
        return None
    if not _steps_between(run, lost):
        return None  # gradients were wanted for their own sake: nobody steps here
    where = Counter(_clearing(run, number) for number in lost).most_common(1)[0][0]
    if where is None:
        return None
    return RULE.finding(
        run.events[where].site or site,
        f"The gradients of {len(lost)} of {len(numbers)} backward calls are cleared before any step uses them.",
        why=_WHY,
        advice="Clear after the step, or before the window's first backward(), not in between.",
        fix=functools.partial(_after_the_step, always=len(lost) == len(numbers)),
        count=len(lost),
        evidence={"lost": len(lost), "backward_calls": len(numbers)},
        about=frozenset().union(*(run.backward(number).reached for number in lost)),
    )


def _is_lost(run: Run, number: int) -> bool:
    """Say whether all that a backward call gave to owned parameters was cleared unused, and not read by hand."""
    event = run.backward(number)
    mine = [one for one in run.by_backward[number] if run.owned & one.atom]
    if not mine or not event.seen or event.others or event.create:
        return False
    if not all(_unused(one) for one in mine):
        return False
    return not (_put_together(run, number) or _used_by_hand(run, number, mine) or _skipped(run, number, mine))


def _skipped(run: Run, number: int, mine: list[Contribution]) -> bool:
    """Say whether a gradient scaler left the step out, because a gradient was not finite."""
    end = max(one.cleared or number for one in mine)
    return any(isinstance(event, ScalerStepped) and event.skipped for event in run.events[number:end])


def _used_by_hand(run: Run, number: int, mine: list[Contribution]) -> bool:
    """Say whether values were written by hand before the clearing, or a closure's last gradients were used."""
    ids = frozenset().union(*(one.atom for one in mine))
    end = max(one.cleared or number for one in mine)
    if any(
        isinstance(event, Written) and event.target == "value" and event.parameters & ids
        for event in run.events[number:end]
    ):
        return True
    if not run.backward(number).closure:
        return False
    later = (event for event in run.events[number:] if isinstance(event, Stepped) and event.closure)
    return bool(next((event.used for event in later), frozenset()) & ids)


def _put_together(run: Run, number: int) -> bool:
    """Say whether the next step of an owner used gradients that were set by hand."""
    for later in range(number + 1, len(run.events)):
        event = run.events[later]
        if isinstance(event, Stepped) and event.used & run.backward(number).reached:
            return any(one.backward < 0 and later in one.consumed for one in run.contributions)
    return False


def _steps_between(run: Run, lost: list[int]) -> bool:
    """Say whether owners of the lost gradients step about as often as these are lost."""
    reached: Ids = frozenset().union(*(run.backward(number).reached for number in lost))
    steps = 0
    for number in range(lost[0], len(run.events)):
        event = run.events[number]
        if isinstance(event, Stepped) and any(event.optimizer in run.owners[one] for one in reached):
            steps += 1
    return steps * 12 >= len(lost) and steps > 0


def _clearing(run: Run, number: int) -> int | None:
    for one in run.by_backward[number]:
        if one.cleared is not None and run.owned & one.atom:
            return _first_at(run, one.cleared)
    return None


def _first_at(run: Run, number: int) -> int:
    """Return the first event at the same line, so that many clearings at one line count as one."""
    site = run.events[number].site
    for earlier, event in enumerate(run.events):
        if event.site == site and isinstance(event, Cleared):
            return earlier
    return number


def _partly_lost(run: Run, site: Site, numbers: list[int]) -> Finding | None:
    """Return a finding where a step gets only a part of what a backward call gave to its parameters."""
    hits: dict[int, int] = Counter()
    gone: set[int] = set()
    for number in numbers:
        contributions = run.by_backward[number]
        for optimizer in {
            holder for one in contributions for p in one.atom for holder in run.owners.get(p, ())
        }:
            # What a group that is added later had before, nobody was to use.
            mine = [
                one
                for one in contributions
                if any(run.held_since.get((optimizer, p), number) <= number for p in one.atom)
                and any(optimizer in run.owners[p] for p in one.atom)
            ]
            lost = [one for one in mine if _unused(one)]
            if not lost or lost[0].cleared is None or not any(_used_by(run, one, optimizer) for one in mine):
                continue
            event = run.events[lost[0].cleared]
            if not (
                isinstance(event, Cleared) and event.by_hand
            ):  # p.grad = None for some: they are held still
                hits[_first_at(run, lost[0].cleared)] += 1
                gone |= set().union(*(one.atom for one in lost))
    if not hits:
        return None
    where, times = max(hits.items(), key=lambda item: item[1])
    if times < 2 or times * 3 < len(numbers):
        return None
    return RULE.finding(
        run.events[where].site or site,
        f"The gradients of {run.names(gone)} are cleared before the step that uses the others of the same loss "
        f"({times} of {len(numbers)} backward calls).",
        why=_WHY,
        advice="Clear after the step, or before the window's first backward(), not in between.",
        fix=functools.partial(_after_the_step, always=False),
        count=times,
        evidence={"lost": times, "parameters": len(gone)},
        about=gone,
    )


def _unused(one: Contribution) -> bool:
    return not one.consumed and one.cleared is not None and not one.touched


def _used_by(run: Run, one: Contribution, optimizer: int) -> bool:
    return any(run.stepped(step).optimizer == optimizer for step in one.consumed)


# The fix: clear later


def _after_the_step(at: Statement, *, always: bool) -> Fix:
    """Move the calls that clear after the steps, or out of the window. ``always``: all gradients are lost."""
    if method(at.node) != "zero_grad":
        return ()
    steps, own = at.later("step"), [step for step in at.later("step") if owner(step) == owner(at.node)]
    if steps:
        again = [node for node in at.later("backward") if own and node.lineno < own[-1].lineno]
        if again and len({owner(step) for step in at.beside("step")}) > 1:
            return ()  # it clears for its own loss, which comes next
        moves = [Move(at.line, after=(own or steps)[-1].lineno)]
        for other in at.beside("zero_grad"):
            # One beside it, which is before its own step in the same way.
            below = [node for node in at.block if node.lineno > other.lineno]
            next_two = [node for node in below if method(node) in ("step", "backward")][:2]
            if abs(other.lineno - at.line) == 1 and any(owner(node) == owner(other) for node in next_two):
                moves.append(Move(other.lineno, after=steps[-1].lineno))
        return tuple(moves)
    conditions = [node for node in at.block if node.lineno > at.line and isinstance(node, ast.If)]
    inner = [step for node in conditions for step in at.steps(within=node)]
    if inner:
        return (Move(at.line, after=inner[-1].lineno),)
    everywhere, backward = at.steps(), at.earlier("backward")
    if always and not everywhere and backward:  # in a closure
        return (Move(at.line, before=backward[-1].lineno),)
    loop = next((loop for loop in at.loops if at.node in loop.body), None)
    if loop is not None and everywhere and all(step.lineno > (loop.end_lineno or 0) for step in everywhere):
        return (Move(at.line, before=loop.lineno),)
    return ()


RULE = Rule("GG202", "zero-grad-misplaced", "error", __doc__ or "", _judge)
