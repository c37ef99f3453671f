"""Parameters that get no gradient, and gradients that no optimizer uses: what several rules ask of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._run import Run
from gradgate.events import Backward, Differentiated, Frame, Ids, OptimizerMade, Parameter, Site, Stepped

_STEPS = 3  # of an optimizer before anything is said of what it leaves out


def unreached(run: Run) -> Ids:
    """Return the trainable parameters of optimizers that step, which no gradient reached and nobody moved."""
    return frozenset(
        number
        for number in run.owned - run.reached
        if run.parameters[number].trainable
        and run.parameters[number].still
        and max(run.stepping[optimizer] for optimizer in run.owners[number]) >= _STEPS
    )


def unowned(run: Run) -> Ids:
    """Return what losses reach and no optimizer ever holds, where nobody asks for its gradient by hand."""
    asked: set[int] = set()
    for event in run.of(Differentiated):
        asked |= event.asked
    by_hand = any(one.backward < 0 and one.consumed for one in run.contributions)
    if by_hand:  # gradients are carried from one model to another, which trains
        return frozenset()
    return frozenset(number for number in run.reached - run.owned - asked if number in run.parameters)


@dataclass(frozen=True)
class Replaced:
    """Parameters that an optimizer holds, and those that were made later and are trained in their place."""

    optimizer: int
    old: Ids
    new: Ids
    steps: int  # of the optimizer, since


def replaced(run: Run) -> Iterator[Replaced]:
    """Yield what took the place of an optimizer's parameters after it was made."""
    first = first_reached(run)
    fresh = [run.parameters[number] for number in unowned(run)]
    for optimizer, made in run.made.items():
        place = next(number for number, event in run.numbered(OptimizerMade) if event is made[0])
        new = [one for one in fresh if one.made and one.made_at > place and one.still]
        if not new:
            continue
        since = min(first[one.id] for one in new)
        steps = [
            number for number, event in run.numbered(Stepped) if number > since and _by(event, optimizer)
        ]
        held = frozenset().union(*(group.parameters for event in made for group in event.groups))
        idle = [run.parameters[number] for number in held - reached_after(run, since)]
        old, taken = _pairs([one for one in idle if one.trainable], new)
        if old and steps and len(temporary(run, taken)) < len(taken):
            yield Replaced(
                optimizer, frozenset(one.id for one in old), frozenset(one.id for one in taken), len(steps)
            )


def _by(event: object, optimizer: int) -> bool:
    return isinstance(event, Stepped) and event.optimizer == optimizer


def _pairs(idle: list[Parameter], new: list[Parameter]) -> tuple[list[Parameter], list[Parameter]]:
    """Match what an optimizer holds in vain with what was made later: by shape, or as its module is gone."""
    old = [one for one in idle if not one.registered or any(one.shape == other.shape for other in new)]
    shapes = {one.shape for one in old}
    alike = [one for one in new if one.shape in shapes or _same_rank(one, old)]
    moved = any(one.root != other.root or not one.registered for one in old for other in alike)
    taken = {one.name for one in old} == {
        one.name for one in alike
    }  # the very names go on with other tensors
    return (old, alike) if moved or taken else ([], [])


def _same_rank(one: Parameter, old: Iterable[Parameter]) -> bool:
    return any(not other.registered and len(other.shape) == len(one.shape) for other in old)


def temporary(run: Run, several: Iterable[Parameter]) -> Ids:
    """Return those that were reached once and then made anew: copies of the forward pass."""
    often: Counter[int] = Counter()
    for event in run.of(Backward):
        often.update(event.reached)
    found = [one for one in several if often[one.id] == 1]
    lines = Counter(one.made[0] for one in found if one.made)
    return frozenset(one.id for one in found if one.made and lines[one.made[0]] >= _STEPS)


def first_reached(run: Run) -> dict[int, int]:
    """Return by parameter the number of the first backward call that reached it."""
    first: dict[int, int] = {}
    for number, event in run.numbered(Backward):
        assert isinstance(event, Backward)  # noqa: S101
        for one in event.reached - first.keys():
            first[one] = number
    return first


def reached_after(run: Run, since: int) -> Ids:
    """Return what backward calls reached from one event on."""
    found: set[int] = set()
    for reach in {event.reached for event in run.events[since:] if isinstance(event, Backward)}:
        found |= reach
    return frozenset(found)


def made_line(one: Parameter, like: Iterable[Parameter]) -> Frame:
    """Return the line that made a parameter: the innermost one that did not also make what it replaced."""
    others = {frame for other in like for frame in other.made}
    return next((frame for frame in one.made if frame not in others), one.made[0])


def calling_line(sites: Iterable[Site], backward: Site) -> Frame | None:
    """Return the line through which parameters were used: the innermost that all share, outside modules.

    Where they were used by several lines, it is that of the first.
    """
    several = [site for site in sites if site]
    if not several:
        return None
    shared = [
        frame for frame in several[0] if all(frame in site for site in several) and frame not in backward
    ]
    lines = shared or [frame for frame in several[0] if frame not in backward] or list(several[0])
    outside = [frame for frame in lines if frame.function not in ("forward", "__call__")]
    return (outside or lines)[0]
