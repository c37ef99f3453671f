"""Finds steps that also use another optimizer's loss, which was back-propagated after the step's own loss."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._run import Run, innermost, once
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, Opposed, Site

_WHY = (
    "The step also minimizes another optimizer's loss, whose gradient these parameters should only pass on."
)
FAR_APART = -0.6
"""A mean cosine below which two losses oppose each other."""


def late_losses(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report the lines of such steps. The other loss opposes the step's own, or compares with no data.

    An encoder's loss through a decoder, and the decoder's own loss, both say what to decode: they may be added.
    """
    for optimizer in run.stepping:
        own = lines_of_own_losses(run, optimizer)
        found: dict[Site, list[tuple[StepWindow, Contribution]]] = defaultdict(list)
        for window in run.windows:
            last = max((n for n in window.micro if run.events[n].site in own), default=0)
            for part in window.fresh if window.optimizer == optimizer and last else ():
                if part.backward > last and not part.touched and is_passed_on(run, window, part):
                    found[run.events[part.backward].site].append((window, part))
        for source, leaks in list(found.items())[-1:]:
            steps = {window.step for window, _ in leaks}
            if len(steps) < 2 or len(steps) * 4 < run.stepping[optimizer]:
                continue
            window = leaks[0][0]
            mine = [run.events[number].site for number in window.micro if run.events[number].site in own][-1]
            ids = frozenset[int]().union(*(part.atom for _, part in leaks))
            name, lines = run.optimizer(optimizer), where_they_differ(source, mine)
            yield rule.finding(
                run.events[window.step].site,
                f"In {len(steps)} of {run.stepping[optimizer]} steps of {name}, the gradients of {run.names(ids)} "
                f"include the loss of line {lines[0].line}, in addition to the loss of line {lines[1].line}.",
                why=_WHY,
                advice=f"Step {name} after its own backward(), before the other loss is computed.",
                fix=functools.partial(_step_first, own=innermost(mine), other=innermost(source)),
                severity="warning",
                count=len(steps),
                evidence={"leaking_line": lines[0].line, "parameters": len(ids)},
                about=ids,
            )


@once
def lines_of_own_losses(run: Run, optimizer: int) -> set[Site]:
    """Return the lines whose loss, or a term of it, reaches only this optimizer's parameters."""
    found: set[Site] = set()
    for number, event in run.numbered(Backward):
        if isinstance(event, Backward) and event.seen and event.site not in found:
            for reach in [event.reached, *(term.reach for term in run.terms(number))]:
                owners = [run.owners[each] for each in reach & run.owned]
                if owners and all(optimizer in each for each in owners):
                    found.add(event.site)
    return found


def where_they_differ(first: Site, second: Site) -> tuple[Frame, Frame]:
    """Return the first lines at which two stacks differ: two losses may share a function that calls backward."""
    pairs = zip(first, second, strict=False)
    return next(((one, other) for one, other in pairs if one != other), (innermost(first), innermost(second)))


def opposed(run: Run, window: StepWindow, contribution: Contribution) -> float:
    """Return the mean cosine between a contribution and the other gradients of its window, where some oppose."""
    cosines = [
        cosine
        for event in run.events[contribution.backward : window.step]
        if isinstance(event, Opposed)
        for number, cosine in event.cosines
        if number in contribution.atom
    ]
    return sum(cosines) / len(cosines) if cosines else 0.0


def used_by_others(run: Run, contribution: Contribution, optimizer: int) -> Iterator[int]:
    """Yield the steps of other optimizers that used gradients of the same backward call in their own parameters."""
    siblings = (part for part in run.by_backward[contribution.backward] if part is not contribution)
    steps = (step for sibling in siblings for step in sibling.consumed)
    return (step for step in steps if run.stepped(step).optimizer != optimizer)


def is_passed_on(run: Run, window: StepWindow, part: Contribution) -> bool:
    """Return whether a loss is another optimizer's own, and these parameters should only pass its gradient on."""
    site, steps = run.events[part.backward].site, set(used_by_others(run, part, window.optimizer))
    if not any(
        each.step in steps and run.events[each.micro[-1]].site == site for each in run.windows if each.micro
    ):
        return False
    held = {number for number, owners in run.owners.items() if window.optimizer in owners}
    through = [event for event in run.of(Backward) if event.site == site and event.beyond & held]
    driven = any(event.driven & event.beyond & held for event in through)
    return bool(through) and (driven or opposed(run, window, part) < FAR_APART)


# The fix: step before the other loss


def _step_first(at: Statement, *, own: Frame, other: Frame) -> Fix:
    """Move the step to its own backward call, if the other loss is computed after that."""
    calls = {node.lineno: node for node in at.beside("backward")}
    first, second = calls.get(own.line), calls.get(other.line)
    between = [node for node in at.block if first is not None and first.lineno < node.lineno < at.line]
    if first is None or second not in between or method(at.node) != "step":
        return ()
    computed = any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == owner(second) for node in between
    )
    prepared = any(method(node).startswith(("clip_grad", "unscale_")) for node in between)
    return (Move(at.line, after=first.lineno),) if computed and not prepared else ()
