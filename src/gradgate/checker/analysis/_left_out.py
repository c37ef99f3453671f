"""Finds parameters that losses reach but that are in no optimizer."""

from __future__ import annotations

import ast
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._origins import list_line, unfreezing_line
from gradgate.checker.analysis._parameter_usage import misdirected, rebound, replaced, temporary, unowned
from gradgate.checker.analysis._queries import calling_line
from gradgate.checker.analysis._run import Run, innermost, once
from gradgate.checker.analysis._scopes import called, own_calls, scope_at
from gradgate.checker.analysis._source import inside, statement_at, text_of
from gradgate.events import (
    Backward,
    Frame,
    Ids,
    ModeSet,
    OptimizerMade,
    Parameter,
    Site,
    Stepped,
)

_STEPS = 3  # parameters that losses reach only after this many backward calls count as unfrozen
_RATIO = 4  # a part this many times larger than the trained part counts as left out on purpose
_SMALL = 16  # a tensor with at most this many elements may be a parameter


@dataclass(frozen=True)
class Left:
    """Parameters of one module that a line's losses reach but that are in no optimizer."""

    ids: Ids
    backward: Site
    forgotten: bool  # they should be trained
    listed: bool = True  # False: they are in a plain list or dict, which no module registers
    later: bool = False  # they were made after the optimizer
    plain: bool = False  # a plain tensor in an attribute of a trained module
    unfrozen: Frame | None = None  # the line that turned their gradients on, between two steps
    fixed: bool = True  # False: only their size suggests that they are fixed on purpose


@once
def left_out(run: Run) -> list[Left]:
    """Return the parameters that are in no optimizer, module by module."""
    found = []
    free = unowned(run)
    known: set[int] = set().union(*(swap.new for swap in replaced(run)), *(each.new for each in rebound(run)))
    known |= temporary(run, [run.parameters[number] for number in free])
    known = known.union(*(misdirected(run, optimizer) for optimizer in run.made))  # meant for an optimizer
    beyond = frozenset().union(*(event.beyond for event in run.of(Backward)))
    for site, reached in _training_lines(run).items():
        groups: dict[str, list[Parameter]] = defaultdict(list)
        for each in (run.parameters[number] for number in (reached & free) - known):
            small = bool(each.name) and math.prod(each.shape) <= _SMALL
            if is_plain_attribute(run, each):
                groups["." + each.name.partition("[")[0]].append(each)
            elif each.registered or each.made or small or each.id in beyond:
                groups[each.root.split("[")[0]].append(each)
        for several in groups.values():
            known |= {each.id for each in several}
            # A parameter that changes is trained by hand, unless it belongs to a copy.
            if all(each.still for each in several) or _is_twin(run, several):
                found.append(_judged(run, several, site, reached & run.owned))
    return [*found, *_unfrozen_again(run)]


def _unfrozen_again(run: Run) -> Iterator[Left]:
    """Yield parameters of an earlier phase's optimizer that are unfrozen while another optimizer steps."""
    last = {optimizer: (run.steps(optimizer) or [-1])[-1] for optimizer in run.made}
    for site, reached in _training_lines(run).items():
        groups: dict[frozenset[int], set[int]] = defaultdict(set)
        for number in reached & run.owned:
            groups[frozenset(run.owners[number])].add(number)
        for owners, numbers in groups.items():
            ids, since = frozenset(numbers), max(last[owner] for owner in owners)
            if since >= max((step for other, step in last.items() if other not in owners), default=-1):
                continue
            calls = (event for number, event in run.numbered(Backward) if number > since)
            ids &= frozenset().union(*(event.reached for event in calls if event.site == site))
            unfrozen = _unfrozen(run, ids, site, since)[1] if ids and since >= 0 else None
            if unfrozen is not None:
                yield Left(ids, site, forgotten=True, unfrozen=unfrozen)


def is_plain_attribute(run: Run, parameter: Parameter) -> bool:
    """Return whether a tensor is an attribute of a trained module, or of one in an optimizer, but no parameter."""
    holder, dot, _ = parameter.name.partition("[")[0].rpartition(".")
    if parameter.registered or parameter.made or parameter.root or not dot:
        return False
    lists = [list_line(event.site) or innermost(event.site) for event in run.of(OptimizerMade) if event.site]
    if any(f"{holder}.parameters()" in text_of(line) for line in lists):
        return True
    # A module may hold nothing but such tensors, and its name may begin at another variable than those of others.
    paths = [f".{each}." for each in (holder, holder.rpartition(".")[0]) if each]
    names = [f".{run.name(number)}" for number in run.owned & run.reached]
    return any(path in name for path in paths for name in names)


def _training_lines(run: Run) -> dict[Site, Ids]:
    """Return the lines whose gradients a step used, and the parameters that each line reaches more than once."""
    found: dict[Site, Ids] = defaultdict(frozenset)
    often = Counter(number for event in run.of(Backward) for number in event.reached - run.owned)
    for number, several in run.by_backward.items():
        if number >= 0 and any(each.consumed for each in several):
            found[run.backward(number).site] |= run.backward(number).reached
    lines = {innermost(site): site for site in found if site}
    for event in run.of(Backward):
        site = lines.get(innermost(event.site)) if event.site else None
        if site is not None and _trains_nothing(
            run, event
        ):  # a function that back-propagates for several models
            found[site] |= event.reached
    return {site: frozenset(number for number in ids if often[number] != 1) for site, ids in found.items()}


def _trains_nothing(run: Run, event: Backward) -> bool:
    """Return whether a loss reaches only parameters, and no optimizer holds any of them."""
    return not event.reached & run.owned and not event.others


def _judged(run: Run, several: list[Parameter], site: Site, beside: Ids) -> Left:
    ids = frozenset(each.id for each in several)
    trained = [run.parameters[number] for number in beside if number in run.parameters]
    roots = {each.root for each in trained}
    if not all(each.still for each in several) or _in_evaluation(run, ids):
        return Left(ids, site, forgotten=False)  # an average, a copy, or fixed on purpose
    if is_plain_attribute(run, several[0]):
        return Left(ids, site, forgotten=True, plain=True)
    # Layers in a plain list of a trained module: "model.layers[0]" and so on, or "model.mlp.layers[0]".
    lists = {each.root for each in several if "[" in each.root}
    inside = any(f"{root.split('[')[0]}.".startswith(f"{trained}.") for root in lists for trained in roots)
    hidden = len(lists) > 1 and inside
    unknown = not any(each.registered for each in several) and any(each.made for each in several)
    last = max((number for number, _ in run.numbered(OptimizerMade)), default=-1)
    later = all(each.made_at > last for each in several)
    if later and _is_copied_target(run, several, beside):
        return Left(ids, site, forgotten=False)
    if hidden or unknown or later:
        return Left(ids, site, forgotten=True, listed=not hidden and not unknown, later=later)
    reached_later, unfrozen = _unfrozen(run, ids, site)
    if unfrozen is not None:
        return Left(ids, site, forgotten=True, unfrozen=unfrozen)
    size, trained_size = sum(each.nbytes for each in several), sum(each.nbytes for each in trained)
    beyond = any(event.beyond & ids for event in run.of(Backward))
    part = several[0].root in roots
    if _is_twin(run, several):
        copied = _is_copied(run, several)
        lost = any(event.reached & ids and _trains_nothing(run, event) for event in run.of(Backward))
        return Left(ids, site, forgotten=lost and not copied, fixed=copied)
    if beyond and _compares(run, ids, site):
        return Left(ids, site, forgotten=False, fixed=not part)
    if size >= _RATIO * trained_size:
        return Left(ids, site, forgotten=False, fixed=not beyond and not reached_later)
    forgotten = beyond or (part and size < trained_size) or size * 2 < trained_size
    return Left(ids, site, forgotten=forgotten, fixed=False)


def _unfrozen(run: Run, ids: Ids, backward: Site, since: int = -1) -> tuple[bool, Frame | None]:
    """Return whether a line's losses reach parameters only after some steps, and the line that unfreezes them."""
    later = (event for number, event in run.numbered(Backward) if number > since)
    calls = [event for event in later if event.site[:1] == backward[:1] and event.seen]
    reaching = [bool(event.reached & ids) for event in calls]
    first = reaching.index(True) if True in reaching else 0
    if first < _STEPS or not all(reaching[first:]):
        return False, None
    files = {frame.file: None for event in calls for frame in event.site}
    parts, others = (
        _parts(run, ids),
        _parts(run, frozenset().union(*(each.reached for each in calls[:first]))),
    )
    return True, unfreezing_line(files, parts - others) or unfreezing_line(files, parts)


def _parts(run: Run, ids: Ids) -> set[str]:
    """Return the parts of parameters' names, except numbers and the last parts: "fc" of "layers.0.fc.weight"."""
    return {part for number in ids for part in run.name(number).split(".")[:-1] if not part.isdigit()}


def _compares(run: Run, ids: Ids, backward: Site) -> bool:
    """Return whether a loss uses a network's features of two inputs. Such a network is fixed on purpose."""
    events = [event for event in run.of(Backward) if event.site == backward and event.reached & ids]
    sites = [site for event in events[:1] for number, site in event.through if number in ids]
    line = calling_line(sites, backward)
    scope = scope_at(line) if line is not None else None
    if line is None or scope is None:
        return False
    parts = {part for number in ids for part in run.name(number).split(".")}
    names = set(map(called, inside(ast.Call, statement_at(line)))) & parts
    given = [call.args[0] for call in own_calls(scope.node) if called(call) in names and call.args]
    return len(set(map(ast.unparse, given))) > 1


def _in_evaluation(run: Run, ids: Ids) -> bool:
    """Return whether a module with only these parameters was put into evaluation mode, and stayed there."""
    modes = [event for event in run.of(ModeSet) if event.parameters & ids]
    return bool(modes) and not modes[-1].training and modes[-1].parameters <= ids


def _is_twin(run: Run, several: list[Parameter]) -> bool:
    """Return whether a module of the same shapes is trained. If so, this one is a target network or a copy."""
    if len(several) < 2:
        return False
    root, parts = several[0].root, {_part(each) for each in several}
    others: dict[object, list[tuple[int, ...]]] = defaultdict(list)
    for each in (run.parameters[number] for number in run.owned & run.reached):
        module = each.root
        if each.root == root:
            if not _part(each) or _part(each) in parts:
                continue
            module = f"{root}.{_part(each)}"
        # Compare with the whole module and with each optimizer's part: the next optimizer may get a new layer.
        for key in (module, *((module, optimizer) for optimizer in run.owners[each.id])):
            others[key].append(each.shape)
    return sorted(each.shape for each in several) in map(sorted, others.values())


def _is_copied(run: Run, several: list[Parameter]) -> bool:
    """Return whether parameters are copied from others: a copy made them, or the program writes to them."""
    ids = {each.id for each in several}
    written = any(event.parameters & ids for event in run.written("value"))
    return written or any("copy" in text_of(frame) for each in several for frame in each.made)


def _is_copied_target(run: Run, several: list[Parameter], beside: Ids) -> bool:
    """Return whether parameters are deep copies that losses reach only together with trained parameters."""
    shapes = {run.parameters[number].shape for number in beside}
    ids = {each.id for each in several}
    return all(
        each.shape in shapes and any("deepcopy(" in text_of(frame) for frame in each.made) for each in several
    ) and not any(event.reached & ids and not event.reached & beside for event in run.of(Backward))


def _part(parameter: Parameter) -> str:
    """Return the part of its model that a parameter belongs to: "target" of "agent.target.weight"."""
    return parameter.name.split(".")[1] if parameter.name.count(".") > 1 else ""


def optimizer_beside(run: Run, left: Left) -> int:
    """Return the optimizer that holds the other parameters of the same losses."""
    reached = frozenset().union(*(event.reached for event in run.of(Backward) if event.site == left.backward))
    using: list[int] = [event.optimizer for event in run.of(Stepped) if event.used & reached]
    using = [optimizer for optimizer in using if optimizer not in run.optimizers_of(left.ids)]
    return max(set(using), key=using.count)
