"""Values of trained parameters are written by hand where it spoils what the optimizer does.

## What it does
Follows writes to parameters' values that are not an optimizer's own. Reports those between a forward and its
backward, a descent step by hand beside the optimizer's with the same gradient, rounding that takes the steps back,
a pull to a point that never moves (a soft update the wrong way round), what an evaluation writes and does not put
back (averaged weights, a perturbation), and an initialisation that is repeated in the training loop.

## Why is this bad?
Gradients of one set of weights are applied to another, or what was learned is overwritten. No error is raised:
writes through ``.data`` or under ``no_grad`` go past autograd's checks.

## Example
    def validate():
        for p, average in zip(model.parameters(), averages):
            p.data.copy_(average)                # and training goes on from here
        ...

## Use instead
    def validate():
        backup = [p.detach().clone() for p in model.parameters()]
        for p, average in zip(model.parameters(), averages):
            p.data.copy_(average)
        ...
        for p, kept in zip(model.parameters(), backup):
            p.data.copy_(kept)

or evaluate the averages in a model of their own.

## Known limits
Clamping, masks, projections, noise, averages of other models and restored checkpoints are left alone. Writes
before the first step, and those in the later part of a long run, are not seen.

## Sources
``torch.Tensor.data`` and "In-place correctness checks" in https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._evaluations import evaluates
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import loops_around, same_statement
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import (
    Backward,
    EpochStarted,
    Frame,
    Ids,
    ModeSet,
    NoGradEntered,
    OptimizerMade,
    Site,
    Stepped,
    Written,
)

_INITS = ("normal_", "uniform_")


def _judge(run: Run) -> Iterator[Finding]:
    places: dict[Frame, list[int]] = defaultdict(list)
    for number, event in run.numbered(Written):
        if event.target == "value" and event.site and event.parameters & run.owned:  # type: ignore[attr-defined]
            places[innermost(event.site)].append(number)
    yield from _stale(run)
    for where, numbers in places.items():
        finding = (
            _beside(run, where, numbers)
            or _rounded(run, where, numbers)
            or _pulled(run, where, numbers)
            or _left_by_evaluation(run, where, numbers)
            or _initialised(run, numbers)
        )
        if finding is not None:
            yield finding


def _written(run: Run, number: int) -> Written:
    event = run.events[number]
    assert isinstance(event, Written)  # noqa: S101
    return event


# Between a forward and its backward


def _stale(run: Run) -> Iterator[Finding]:
    places: dict[Frame, tuple[set[int], list[Backward]]] = {}
    for event in run.of(Backward):
        for parameter, site in event.stale:
            names, events = places.setdefault(innermost(site), (set(), []))
            names.add(parameter)
            events.append(event)
    for where, (parameters, events) in places.items():
        if not parameters & run.owned:
            continue
        count = len({id(event) for event in events})
        yield RULE.finding(
            where,
            f"The values of {run.names(parameters)} are changed between a forward and its backward, {count} times.",
            why="The gradients are neither those of the old values nor those of the new ones.",
            advice="Write to parameters after optimizer.step(), before the next forward.",
            severity="error",
            count=count,
            evidence={"backward_calls": count, "parameters": len(parameters)},
        )


# Beside the optimizer's step


def _beside(run: Run, where: Frame, numbers: list[int]) -> Finding | None:
    """Report a step by hand with a gradient that the optimizer uses, too."""
    twice: set[int] = set()
    for number in numbers:
        event = _written(run, number)
        if event.along_gradient:
            twice |= {
                step
                for atom in run.atoms(event.parameters)
                for one in run.contributions
                if one.atom == atom
                and one.backward < number
                and (one.cleared is None or one.cleared > number)
                for step in one.consumed
                if not _written_between(run, event.parameters, number, step)
            }
    along = _size(run, [number for number in numbers if _written(run, number).along_gradient])
    if len(twice) < 2 or along < 8 or along < 0.9 * _size(run, numbers):
        return None
    ids = frozenset().union(*(_written(run, number).parameters for number in numbers))
    name = run.optimizer(run.stepped(min(twice)).optimizer)
    return RULE.finding(
        where,
        f"{run.names(ids)} are moved down their gradient by hand, and by {name} with the same gradient, in "
        f"{len(twice)} steps.",
        why="Each gradient is applied twice, the second time with the optimizer's rate.",
        advice=f"Leave one of the two out: {name}.step() does all of it.",
        severity="error",
        count=len(twice),
        evidence={"steps": len(twice)},
    )


def _size(run: Run, numbers: list[int]) -> int:
    """Return how many values are written in all: two or three may point along their gradient by chance."""
    ids = [one for number in numbers for one in _written(run, number).parameters]
    return sum(math.prod(run.parameters[one].shape) for one in ids if one in run.parameters)


def _written_between(run: Run, ids: Ids, number: int, step: int) -> bool:
    first, last = sorted((number, step))
    return any(
        isinstance(event, Written) and event.target == "value" and event.parameters & ids
        for event in run.events[first + 1 : last]
    )


# After each step


def _share_of_steps(run: Run, numbers: list[int]) -> tuple[int, int]:
    """Return how many steps are followed by one of these writes before the next, and how many steps there are."""
    ids = frozenset().union(*(_written(run, number).parameters for number in numbers))
    steps = [number for number, event in run.numbered(Stepped) if event.used & ids]  # type: ignore[attr-defined]
    ends = [*steps[1:], len(run.events)][: len(steps)]
    hit = sum(any(step < number < end for number in numbers) for step, end in zip(steps, ends, strict=True))
    return hit, len(steps)


def _rounded(run: Run, where: Frame, numbers: list[int]) -> Finding | None:
    undoing = [number for number in numbers if _written(run, number).undoes]
    hit, steps = _share_of_steps(run, undoing) if undoing else (0, 0)
    if hit < 3 or 2 * hit < steps - 1:
        return None
    ids = frozenset().union(*(_written(run, number).parameters for number in undoing))
    return RULE.finding(
        where,
        f"{run.names(ids)} are rounded in place, which takes back most of what the last step did, {hit} times.",
        why="Steps that are smaller than the grid are lost: the weights stay where they are.",
        advice="Keep the weights in full precision and round a copy in the forward: w + (quantize(w) - "
        "w).detach().",
        count=hit,
        evidence={"steps_taken_back": hit, "steps": steps},
    )


def _pulled(run: Run, where: Frame, numbers: list[int]) -> Finding | None:
    pulling = [number for number in numbers if _written(run, number).pulled is not None]
    shares = [_written(run, number).pulled or 0.0 for number in pulling]
    hit, _ = _share_of_steps(run, pulling) if pulling else (0, 0)
    written, _ = _share_of_steps(run, numbers)
    if hit < 3 or 2 * hit < written or min(shares) < 0.1:
        return None
    ids = frozenset().union(*(_written(run, number).parameters for number in pulling))
    return RULE.finding(
        where,
        f"{run.names(ids)} are moved {min(shares):.0%} of the way to values that never change, {hit} times.",
        why="What the optimizer has learned is taken back after each step, and the other network learns nothing.",
        advice="Write the average into the target: target.lerp_(source, tau), under no_grad.",
        count=hit,
        evidence={"share": min(shares), "writes": hit},
    )


# By an evaluation


def _left_by_evaluation(run: Run, where: Frame, numbers: list[int]) -> Finding | None:
    """Report what an evaluation writes into trained parameters if training goes on with it."""
    left = [number for number in numbers if _stands(run, number)]
    hit, steps = _share_of_steps(run, left) if left else (0, 0)
    if not left or 2 * len(left) < len(numbers) - 1:
        return None
    rare = hit <= max(1, 2 * steps / 3)
    before_eval = rare and all(_evaluated_next(run, number) for number in left)
    if not before_eval and not any(evaluates(run, frame) for frame in _written(run, left[0]).site):
        return None
    ids = frozenset().union(*(_written(run, number).parameters for number in left))
    return RULE.finding(
        where,
        f"{run.names(ids)} are overwritten for an evaluation and not put back, {hit} times: training goes on so.",
        why="What the optimizer has learned is replaced, and its state belongs to other weights.",
        advice="Copy the weights before, and copy them back after the evaluation, or evaluate a copy of the model.",
        count=hit,
        evidence={"writes": hit, "steps": steps},
    )


def _stands(run: Run, number: int) -> bool:
    """Say whether the next step of the parameters finds them changed, as this write has left them."""
    event = _written(run, number)
    if event.restored or not event.whole:
        return False
    for later in run.events[number + 1 :]:
        if isinstance(later, OptimizerMade):
            return False
        if isinstance(later, Stepped) and later.used & event.parameters:
            return bool(later.changed & event.parameters)
    return False


def _evaluated_next(run: Run, number: int) -> bool:
    """Say whether an evaluation begins after a write, before the next backward; a whole module was written."""
    event = _written(run, number)
    if event.op not in ("copy_", "data", "set_"):
        return False
    for later in run.events[number + 1 :]:
        if isinstance(later, (Backward, Stepped)):
            return False
        if isinstance(later, ModeSet) and not later.training and later.parameters & event.parameters:
            return True
        if isinstance(later, NoGradEntered):
            return not same_statement(innermost(later.site), innermost(event.site))
    return False


# An initialisation


def _initialised(run: Run, numbers: list[int]) -> Finding | None:
    """Report an initialisation that comes again and again between steps of one optimizer, once in each epoch."""
    fresh = [number for number in numbers if _written(run, number).op in _INITS and _stands(run, number)]
    ids = frozenset().union(*(_written(run, number).parameters for number in fresh))
    hit, _ = _share_of_steps(run, fresh) if fresh else (0, 0)
    if not hit or not _each_epoch(run, _written(run, fresh[0]).site, fresh):
        return None
    write = _written(run, fresh[0]).site
    step = next(event for event in run.of(Stepped) if event.used & ids).site
    # What initialises is right in itself: the line to change is the one that calls it beside the steps.
    inside = {(frame.file, frame.function) for frame in step}
    shared = next((frame for frame in write if (frame.file, frame.function) in inside), innermost(write))
    return RULE.finding(
        shared,
        f"{run.names(ids)} are initialised again {_times(hit)} between steps: what was learned is overwritten.",
        why="Each epoch begins from scratch, with the optimizer's state of the one before.",
        advice="Initialise once, before the training loop.",
        severity="error",
        count=hit,
        evidence={"initialised": hit},
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _each_epoch(run: Run, site: Site, numbers: list[int]) -> bool:
    """Say whether an epoch lies between two such writes: by the loop's words, or by the passes over the data."""
    loops = [loop for frame in site for loop in loops_around(frame)]
    words = [ast.unparse(loop.target) + ast.unparse(loop.iter) for loop in loops if isinstance(loop, ast.For)]
    if any("epoch" in word.lower() for word in words):
        return True
    epochs = [number for number, _ in run.numbered(EpochStarted)]
    spans = list(pairwise(numbers))
    return any(sum(first < epoch < last for epoch in epochs) == 1 for first, last in spans)


RULE = Rule("GG305", "inplace-param-update", "warning", __doc__ or "", _judge)
