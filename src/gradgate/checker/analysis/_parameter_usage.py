"""Parameters that get no gradient, and gradients that no optimizer uses."""

from __future__ import annotations

import ast
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._origins import unfreezing_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, own_calls, scope_at
from gradgate.checker.analysis._source import statement_at
from gradgate.events import (
    Backward,
    Differentiated,
    Frame,
    Ids,
    ModeSet,
    OptimizerMade,
    Parameter,
    Site,
    Stepped,
)

_STEPS = 3  # steps of an optimizer before parameters that it does not train count
_RATIO = 4  # a part this many times larger than the trained one was left out on purpose
_SMALL = 16  # a bare tensor with at most this many elements may be a parameter


def unreached(run: Run) -> Ids:
    """Return the trainable parameters that no gradient reached and nothing moved, though their optimizer steps."""
    aside = {optimizer for optimizer in run.made if misdirected(run, optimizer)}
    return frozenset(
        number
        for number in run.owned - run.reached
        if not run.owners[number] <= aside
        and run.parameters[number].trainable
        and run.parameters[number].still
        and max(run.stepping[optimizer] for optimizer in run.owners[number]) >= _STEPS
    )


def unowned(run: Run) -> Ids:
    """Return the parameters that losses reach and no optimizer holds, except those of ``autograd.grad`` calls."""
    if any(each.backward < 0 and each.consumed for each in run.contributions):
        return frozenset()  # gradients are copied from one model to another, which trains
    asked: Ids = frozenset().union(*(event.asked for event in run.of(Differentiated)))
    return frozenset(number for number in run.reached - run.owned - asked if number in run.parameters)


def misdirected(run: Run, optimizer: int) -> Ids:
    """Return the parameters that losses reach and nothing trains, if no step of an optimizer had a gradient.

    Such an optimizer was given the wrong parameters. A loss that also reaches some optimizer's parameters does not
    count: what else it reaches may be fixed on purpose.
    """
    steps = [event for event in run.of(Stepped) if event.optimizer == optimizer]
    if len(steps) < _STEPS or any(step.used or step.moved for step in steps):
        return frozenset()
    free = unowned(run)
    losses = {event.reached for event in run.of(Backward) if not event.reached & run.owned}
    meant = free & frozenset().union(*losses)
    return meant if all(run.parameters[number].still for number in meant) else frozenset()


def temporary(run: Run, several: Iterable[Parameter]) -> Ids:
    """Return the parameters that every forward pass creates again, so that each is reached only once."""
    often: Counter[int] = Counter()
    for event in run.of(Backward):
        often.update(event.reached)
    found = [each for each in several if often[each.id] == 1 and each.made]
    lines = Counter(each.made[0] for each in found)
    return frozenset(each.id for each in found if lines[each.made[0]] >= _STEPS)


# Parameters that replaced those of an optimizer


@dataclass(frozen=True)
class Replaced:
    """Parameters that an optimizer holds, and those that were made later and are used in their place."""

    optimizer: int
    old: Ids
    new: Ids
    steps: int  # of the optimizer, since then


def replaced(run: Run) -> Iterator[Replaced]:
    """Yield the parameters that replaced those of an optimizer after it was made."""
    fresh = [run.parameters[number] for number in unowned(run)]
    for optimizer, made in run.made.items():
        place = next(number for number, event in run.numbered(OptimizerMade) if event is made[0])
        new = [each for each in fresh if each.made and each.made_at > place and each.still]
        if not new:
            continue
        ids = {each.id for each in new}
        since = min(number for number, event in run.numbered(Backward) if event.reached & ids)  # type: ignore[attr-defined]
        later = [event for event in run.events[since:] if isinstance(event, (Backward, Stepped))]
        steps = sum(isinstance(event, Stepped) and event.optimizer == optimizer for event in later)
        reached: Ids = frozenset().union(*{event.reached for event in later if isinstance(event, Backward)})
        held: Ids = frozenset().union(*(group.parameters for event in made for group in event.groups))
        idle = [run.parameters[number] for number in held - reached]
        unused = not any(event.used for event in run.of(Stepped) if event.optimizer == optimizer)
        old, taken = _pairs([each for each in idle if each.trainable or unused], new)
        if old and steps and len(temporary(run, taken)) < len(taken):
            yield Replaced(
                optimizer, frozenset(each.id for each in old), frozenset(each.id for each in taken), steps
            )


def _pairs(idle: list[Parameter], new: list[Parameter]) -> tuple[list[Parameter], list[Parameter]]:
    """Match an optimizer's idle parameters with newer ones, by shape, or because their module is gone."""
    old = [each for each in idle if not each.registered or any(each.shape == other.shape for other in new)]
    shapes = {each.shape for each in old}
    ranks = {len(each.shape) for each in old if not each.registered}
    alike = [each for each in new if each.shape in shapes or len(each.shape) in ranks]
    moved = any(each.root != other.root or not each.registered for each in old for other in alike)
    renewed = {each.name for each in old} == {each.name for each in alike}
    return (old, alike) if moved or renewed else ([], [])


# Parameters that are in no optimizer


@dataclass(frozen=True)
class Left:
    """Parameters of one module that a line's losses reach and that are in no optimizer."""

    ids: Ids
    backward: Site
    forgotten: bool  # they should be trained
    listed: bool = True  # False: they are in a plain list or dict, which no module registers
    later: bool = False  # they were made after the optimizer
    plain: bool = False  # a plain tensor that is an attribute of a trained module
    unfrozen: Frame | None = None  # the line that switched their gradients on, between two steps
    fixed: bool = True  # if not forgotten: not only their size shows that they are used unchanged


def left_out(run: Run) -> Iterator[Left]:
    """Yield the parameters that are in no optimizer, module by module."""
    free = unowned(run)
    known: set[int] = set().union(*(swap.new for swap in replaced(run)))
    known |= temporary(run, [run.parameters[number] for number in free])
    beyond = frozenset().union(*(event.beyond for event in run.of(Backward)))
    for site, reached in _training_lines(run).items():
        groups: dict[str, list[Parameter]] = defaultdict(list)
        for each in (run.parameters[number] for number in (reached & free) - known):
            small = bool(each.name) and math.prod(each.shape) <= _SMALL
            if is_plain_attribute(run, each):
                groups["." + each.name].append(each)
            elif each.registered or each.made or small or each.id in beyond:
                groups[each.root.split("[")[0]].append(each)
        for several in groups.values():
            known |= {each.id for each in several}
            # A parameter that moves is trained by hand, unless it belongs to a copy.
            if all(each.still for each in several) or _is_twin(run, several):
                yield _judged(run, several, site, reached & run.owned)


def is_plain_attribute(run: Run, parameter: Parameter) -> bool:
    """Return whether a tensor is not an ``nn.Parameter`` but a plain attribute of a trained module."""
    holder, dot, attribute = parameter.name.rpartition(".")
    if parameter.registered or parameter.made or parameter.root or not dot or "[" in attribute:
        return False
    return any(run.name(number).startswith(f"{holder}.") for number in run.owned & run.reached)


def _training_lines(run: Run) -> dict[Site, Ids]:
    """Return the lines whose losses were used by steps, with the parameters that they reach more than once."""
    found: dict[Site, Ids] = defaultdict(frozenset)
    often = Counter(number for event in run.of(Backward) for number in event.reached - run.owned)
    for number, several in run.by_backward.items():
        if number >= 0 and any(each.consumed for each in several):
            found[run.backward(number).site] |= run.backward(number).reached
    return {site: frozenset(number for number in ids if often[number] != 1) for site, ids in found.items()}


def _judged(run: Run, several: list[Parameter], site: Site, beside: Ids) -> Left:
    ids = frozenset(each.id for each in several)
    trained = [run.parameters[number] for number in beside if number in run.parameters]
    roots = {each.root for each in trained}
    if not all(each.still for each in several) or _in_evaluation(run, ids):
        return Left(ids, site, forgotten=False)  # an average or a copy, or used as it is
    if is_plain_attribute(run, several[0]):
        return Left(ids, site, forgotten=True, plain=True)
    # Layers in a plain list of a trained module: "model.layers[0]" and so on.
    lists = {each.root for each in several if "[" in each.root}
    hidden = len(lists) > 1 and any(root.split("[")[0].rpartition(".")[0] in roots for root in lists)
    unknown = not any(each.registered for each in several) and any(each.made for each in several)
    last = max((number for number, _ in run.numbered(OptimizerMade)), default=-1)
    later = all(each.made_at > last for each in several)
    if hidden or unknown or later:
        return Left(ids, site, forgotten=True, listed=not hidden and not unknown, later=later)
    reached_later, unfrozen = _unfrozen(run, ids, site)
    if unfrozen is not None:
        return Left(ids, site, forgotten=True, unfrozen=unfrozen)
    size, trained_size = sum(each.nbytes for each in several), sum(each.nbytes for each in trained)
    beyond = any(event.beyond & ids for event in run.of(Backward))
    if _is_twin(run, several) or (beyond and _compares(run, ids, site)):
        return Left(ids, site, forgotten=False)
    if size >= _RATIO * trained_size:
        return Left(ids, site, forgotten=False, fixed=not beyond and not reached_later)
    part = several[0].root in roots and size < trained_size
    return Left(ids, site, forgotten=beyond or part or size * 2 < trained_size)


def _unfrozen(run: Run, ids: Ids, backward: Site) -> tuple[bool, Frame | None]:
    """Return whether a line's losses reach parameters only from some step on, and the line that unfreezes them."""
    calls = [event for event in run.of(Backward) if event.site[:1] == backward[:1] and event.seen]
    reaching = [bool(event.reached & ids) for event in calls]
    first = reaching.index(True) if True in reaching else 0
    if first < _STEPS or not all(reaching[first:]):
        return False, None
    parts = {part for number in ids for part in run.name(number).split(".")[:-1] if not part.isdigit()}
    return True, unfreezing_line({frame.file: None for event in calls for frame in event.site}, parts)


def _compares(run: Run, ids: Ids, backward: Site) -> bool:
    """Return whether a network computes features of two inputs for a loss. Such a network is fixed on purpose."""
    events = [event for event in run.of(Backward) if event.site == backward and event.reached & ids]
    sites = [site for event in events[:1] for number, site in event.through if number in ids]
    line = calling_line(sites, backward)
    scope = scope_at(line) if line is not None else None
    if line is None or scope is None:
        return False
    parts = {part for number in ids for part in run.name(number).split(".")}
    here = ast.walk(statement_at(line) or ast.Pass())
    names = {called(node) for node in here if isinstance(node, ast.Call)} & parts
    given = [call.args[0] for call in own_calls(scope.node) if called(call) in names and call.args]
    return len(set(map(ast.unparse, given))) > 1


def _in_evaluation(run: Run, ids: Ids) -> bool:
    """Return whether a module with only these parameters was put into evaluation mode, and stayed in it."""
    modes = [event for event in run.of(ModeSet) if event.parameters & ids]
    return bool(modes) and not modes[-1].training and modes[-1].parameters <= ids


def _is_twin(run: Run, several: list[Parameter]) -> bool:
    """Return whether a module of the same shapes is trained. Then this one is its target network, or a copy."""
    if len(several) < 2:
        return False
    root, parts = several[0].root, {_part(each) for each in several}
    others: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for each in (run.parameters[number] for number in run.owned & run.reached):
        if each.root != root:
            others[each.root].append(each.shape)
        elif _part(each) and _part(each) not in parts:
            others[f"{root}.{_part(each)}"].append(each.shape)
    return sorted(each.shape for each in several) in map(sorted, others.values())


def _part(parameter: Parameter) -> str:
    """Return the part of its model that a parameter belongs to: "target" of "agent.target.weight"."""
    return parameter.name.split(".")[1] if parameter.name.count(".") > 1 else ""


# Lines


def made_line(parameter: Parameter, like: Iterable[Parameter]) -> Frame:
    """Return the line that made a parameter: the innermost one that did not also make the ones it replaced."""
    others = {frame for other in like for frame in other.made}
    return next((frame for frame in parameter.made if frame not in others), parameter.made[0])


def calling_line(sites: Iterable[Site], backward: Site) -> Frame | None:
    """Return the line that used some parameters: the innermost one outside of modules that all uses share.

    If the uses share no line, it is the line of the first use.
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
