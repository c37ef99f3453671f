"""Which parameters get gradients that no optimizer uses, and whether that was meant: for two rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._parameter_usage import replaced, temporary, unowned
from gradgate.checker.analysis._run import Run
from gradgate.events import Backward, Ids, ModeSet, OptimizerMade, Parameter, Site, Stepped

_RATIO = 4  # what is left out is meant to be where it is that much larger than what is trained
_SMALL = 16  # numbers in a bare tensor that may be a parameter


@dataclass(frozen=True)
class Left:
    """Parameters of one module that a line's losses reach and that are in no optimizer."""

    ids: Ids
    backward: Site
    forgotten: bool  # they were to be trained
    listed: bool = True  # False: they stand in a plain list or dict that no module knows
    later: bool = False  # they were made after the optimizer


def left_out(run: Run) -> Iterator[Left]:
    """Yield what is left out of every optimizer, module by module."""
    free = unowned(run)
    known: set[int] = set().union(*(one.new for one in replaced(run)), temporary(run, _known(run, free)))
    for site, reached in _training_lines(run).items():
        groups: dict[str, list[Parameter]] = defaultdict(list)
        for one in _known(run, (reached & free) - known):
            if one.registered or one.made or _is_small(one):
                groups[one.root.split("[")[0]].append(one)
        for several in groups.values():
            ids = frozenset(one.id for one in several)
            known |= ids
            if not all(one.still for one in several) and not _is_twin(run, several):
                continue  # trained by hand
            yield _judged(run, ids, site, reached & run.owned)


def _known(run: Run, ids: Ids) -> list[Parameter]:
    return [run.parameters[number] for number in ids]


def _is_small(one: Parameter) -> bool:
    size = 1
    for length in one.shape:
        size *= length
    return size <= _SMALL and bool(one.name)


def _training_lines(run: Run) -> dict[Site, Ids]:
    """Return what the losses of each line reach of which a step used something."""
    found: dict[Site, Ids] = {}
    often: dict[int, int] = defaultdict(int)
    for number, several in run.by_backward.items():
        if number >= 0 and any(one.consumed for one in several):
            event = run.backward(number)
            found[event.site] = found.get(event.site, frozenset()) | event.reached
    for event in run.of(Backward):
        for number in event.reached - run.owned:
            often[number] += 1
    once = {number for number, times in often.items() if times < 2}
    return {site: reached - once for site, reached in found.items()}


def _judged(run: Run, ids: Ids, site: Site, beside: Ids) -> Left:
    several = [run.parameters[number] for number in ids]
    last = max((number for number, event in run.numbered(OptimizerMade)), default=-1)
    roots = {run.parameters[number].root for number in beside if number in run.parameters}
    listed = not _hidden(several, roots) and (
        any(one.registered for one in several) or not any(one.made for one in several)
    )
    later = all(one.made_at > last for one in several)
    if not all(one.still for one in several):
        return Left(ids, site, forgotten=False)  # an average, a copy, or trained by hand
    if _in_evaluation(run, ids):
        return Left(ids, site, forgotten=False)
    if not listed or later:
        return Left(ids, site, forgotten=True, listed=listed, later=later)
    beyond = any(event.beyond & ids for event in run.of(Backward))
    weight = sum(one.nbytes for one in several)
    trained = sum(run.parameters[number].nbytes for number in beside if number in run.parameters)
    if weight >= _RATIO * trained or _is_twin(run, several):
        return Left(ids, site, forgotten=False)
    forgotten = beyond or weight * 2 < trained or (several[0].root in roots and weight < trained)
    return Left(ids, site, forgotten=forgotten)


def _hidden(several: list[Parameter], roots: set[str]) -> bool:
    """Say whether they are layers in a plain list of a module that is trained: "model.layers[0]" and so on."""
    lists = {one.root for one in several if "[" in one.root}
    return len(lists) > 1 and any(one.split("[")[0].rpartition(".")[0] in roots for one in lists)


def _in_evaluation(run: Run, ids: Ids) -> bool:
    """Say whether a module of theirs alone was put into evaluation mode, and stayed in it."""
    modes = [event for event in run.of(ModeSet) if event.parameters & ids]
    return bool(modes) and not modes[-1].training and modes[-1].parameters <= ids


def _is_twin(run: Run, several: list[Parameter]) -> bool:
    """Say whether another module of the very same shapes is trained: theirs is its target, or its copy."""
    if len(several) < 2:
        return False
    shapes = sorted(one.shape for one in several)
    others: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for number in run.owned & run.reached:
        one = run.parameters[number]
        if one.root != several[0].root:
            others[one.root].append(one.shape)
    parts = {one.name.split(".")[1] for one in several if one.name.count(".") > 1}
    for number in run.owned & run.reached:
        one = run.parameters[number]
        if one.root == several[0].root and one.name.count(".") > 1 and one.name.split(".")[1] not in parts:
            others[one.root + one.name.split(".")[1]].append(one.shape)
    return any(sorted(found) == shapes for found in others.values())


def idle_groups(run: Run) -> Iterator[tuple[OptimizerMade, Ids]]:
    """Yield the groups of optimizers whose rate was 0 in every step, while others had one."""
    for optimizer, events in run.made.items():
        steps = [event for event in run.of(Stepped) if event.optimizer == optimizer and event.lr]
        groups = [(event, group) for event in events[-1:] for group in event.groups]
        for place, (event, group) in enumerate(groups):
            rates = [step.lr[place] for step in steps if place < len(step.lr)]
            if len(rates) >= 3 and not any(rates) and any(any(step.lr) for step in steps):
                yield event, group.parameters & run.reached
