"""Finds parameters that get no gradient, and parameters that replaced an optimizer's parameters."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gradgate.checker.analysis._gradient_modes import no_grad_around
from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._run import Run, innermost, once
from gradgate.checker.analysis._scopes import definitions, key_of, scopes_of
from gradgate.checker.analysis._source import files_of, inside
from gradgate.events import (
    Backward,
    Differentiated,
    Frame,
    Ids,
    OptimizerMade,
    Parameter,
    Stepped,
    Written,
)

_STEPS = 3  # steps of an optimizer before its untrained parameters count
_LEAST = 3  # minimum number of backward calls that reach only the new tensor


@once
def unreached(run: Run) -> Ids:
    """Return trainable parameters that no gradient reached and nothing changed, although their optimizer steps."""
    aside = {optimizer for optimizer in run.made if misdirected(run, optimizer)}
    return frozenset(
        number
        for number in run.owned - run.reached
        if not run.owners[number] <= aside
        and 0 not in run.parameters[number].shape
        and run.parameters[number].trainable
        and run.parameters[number].still
        and max(run.stepping[optimizer] for optimizer in run.owners[number]) >= _STEPS
        and not follows(run, number)
    )


def follows(run: Run, number: int) -> bool:
    """Return whether other code than a step writes a parameter, but not a trained one of the same shape.

    Such a parameter is an average or a copy of the trained one. A limit or a decay would change both.
    """
    written, trained = _written_between_steps(run)
    each = run.parameters[number]
    return each.shape in trained and (number in written or each.began != each.ended)


@once
def _written_between_steps(run: Run) -> tuple[Ids, set[tuple[int, ...]]]:
    """Return what other code changes, and the shapes of the trained parameters that it doesn't change."""
    written = union(event.changed for event in run.of(Stepped))
    return written, {run.parameters[number].shape for number in run.reached & run.moved - written}


@once
def unowned(run: Run) -> Ids:
    """Return parameters that losses reach but no optimizer holds. Arguments of ``autograd.grad`` don't count."""
    return _not_copied(run, run.reached - run.owned)


def _not_copied(run: Run, reached: Ids) -> Ids:
    """Return the parameters whose gradients are neither copied to a model nor returned by ``autograd.grad``."""
    if any(each.backward < 0 and each.consumed for each in run.contributions):
        return frozenset()  # the script copies gradients from one model to another
    asked: Ids = frozenset().union(*(event.asked for event in run.of(Differentiated)))
    return frozenset(number for number in reached - asked if number in run.parameters)


@once
def misdirected(run: Run, optimizer: int) -> Ids:
    """Return the parameters that losses reach but nothing trains, if no step of this optimizer had a gradient.

    This optimizer got the wrong parameters; another optimizer may have trained the right ones before. A loss that
    also reaches some optimizer's parameters does not count, because its other parameters may be fixed on purpose.
    """
    steps = run.steps(optimizer)
    if len(steps) < _STEPS or any(run.stepped(step).used or run.stepped(step).moved for step in steps):
        return frozenset()
    before = [number for number, event in run.numbered(Stepped) if number < steps[0] and event.used]
    later = run.events[before[-1] + 1 if before else 0 :]
    trained: Ids = frozenset().union(*(each.used | each.moved for each in later if isinstance(each, Stepped)))
    held = run.held(optimizer)
    losses = {each.reached for each in later if isinstance(each, Backward)}
    written = (each.parameters for each in later if isinstance(each, Written) and each.target == "value")
    meant = _not_copied(run, frozenset().union(*(ids for ids in losses if not ids & (trained | held))))
    idle = all(run.parameters[number].still or run.owners[number] for number in meant)
    made = {run.made[owner][0].site for owner in run.optimizers_of(meant)}
    stepping = {each.optimizer for each in later if isinstance(each, Stepped) and each.used}
    if any(run.made[each][0].site in made for each in stepping if each in run.made):
        return frozenset()  # a loop makes an optimizer for each copy of a model
    return meant if idle and not meant & frozenset().union(*written) else frozenset()


def temporary(run: Run, several: Iterable[Parameter]) -> Ids:
    """Return the parameters that every forward pass creates again, so that a loss reaches each only once."""
    often: Counter[int] = Counter()
    for event in run.of(Backward):
        often.update(event.reached)
    found = [each for each in several if often[each.id] == 1 and each.made]
    lines = Counter(each.made[0] for each in found)
    return frozenset(each.id for each in found if lines[each.made[0]] >= _STEPS)


# Parameters that replaced an optimizer's parameters


@dataclass(frozen=True)
class Replaced:
    """Parameters that an optimizer holds, and the newer parameters that are used in their place."""

    optimizer: int
    old: Ids
    new: Ids
    steps: int  # steps of the optimizer since they were replaced


@once
def replaced(run: Run) -> list[Replaced]:
    """Return parameters that replaced an optimizer's parameters after the optimizer was constructed."""
    found = []
    fresh = [run.parameters[number] for number in unowned(run)]
    for optimizer, made in run.made.items():
        place = next(number for number, event in run.numbered(OptimizerMade) if event is made[0])
        new = [each for each in fresh if each.made and each.made_at > place and each.still]
        if not new:
            continue
        ids = {each.id for each in new}
        since = min(number for number, event in run.numbered(Backward) if event.reached & ids)
        later = [event for event in run.events[since:] if isinstance(event, (Backward, Stepped))]
        steps = sum(isinstance(event, Stepped) and event.optimizer == optimizer for event in later)
        reached: Ids = frozenset().union(*{event.reached for event in later if isinstance(event, Backward)})
        idle = [run.parameters[number] for number in run.held(optimizer) - reached]
        unused = not any(run.stepped(number).used for number in run.steps(optimizer))
        old, taken = _pairs([each for each in idle if each.trainable or unused], new)
        if old and steps and len(temporary(run, taken)) < len(taken):
            before, now = (frozenset(each.id for each in several) for several in (old, taken))
            found.append(Replaced(optimizer, before, now, steps))
    return found


def _pairs(idle: list[Parameter], new: list[Parameter]) -> tuple[list[Parameter], list[Parameter]]:
    """Match an optimizer's idle parameters with newer parameters by shape, or because their module is gone."""
    old = [each for each in idle if not each.registered or any(each.shape == other.shape for other in new)]
    shapes = {each.shape for each in old}
    ranks = {len(each.shape) for each in old if not each.registered}
    alike = [each for each in new if each.shape in shapes or len(each.shape) in ranks]
    moved = any(each.root != other.root or not each.registered for each in old for other in alike)
    renewed = {each.name for each in old} == {each.name for each in alike}
    return (old, alike) if moved or renewed else ([], [])


@dataclass(frozen=True)
class Rebound:
    """An optimizer's tensor whose name a line binds to a new one."""

    optimizer: int
    old: int
    new: Ids  # the new tensors, as far as they are known
    line: Frame
    target: str  # "self.weights"
    calls: int  # backward calls since the line ran


@once
def rebound(run: Run) -> list[Rebound]:
    """Return the tensors that losses reached, but that a line replaced after an optimizer got them."""
    known = frozenset().union(*(swap.old for swap in replaced(run)))
    calls = [
        (number, run.backward(number)) for number, _ in run.numbered(Backward) if run.backward(number).seen
    ]
    found = []
    for old in (run.parameters[number] for number in sorted(run.owned & run.reached - known)):
        optimizer, reaching = min(run.owners[old.id]), [pair for pair in calls if old.id in pair[1].reached]
        if old.registered or not old.trainable or not reaching:
            continue
        number, last = reaching[-1]
        later = [event for place, event in calls if place > number and event.site == last.site]
        steps = sum(step > number for step in run.steps(optimizer))
        new = frozenset(each.id for each in run.parameters.values() if each.name == old.name) - {old.id}
        if min(len(later), steps) < _LEAST or new & run.owned:
            continue
        constant = not new and min(event.others for event in later) <= last.others
        lines = _lines(run, old, optimizer, constant=constant)
        if len(lines) == 1:
            found.append(Rebound(optimizer, old.id, new, *lines.popitem(), len(later)))
    return found


def _lines(run: Run, old: Parameter, optimizer: int, *, constant: bool) -> dict[Frame, str]:
    """Return the lines that rebind a tensor after its optimizer was made, and their targets."""
    site, key = run.made[optimizer][0].site, old.name.rpartition(".")[2]
    made, found = innermost(site).line, {}
    for file in files_of([site, *(event.site for event in run.of(Backward))]):
        for scope in scopes_of(file):
            begins = any(node.lineno == made for node in inside(ast.stmt, scope.node))
            if not key or getattr(scope.node, "name", "") == "__init__":
                continue
            for each in (*definitions(scope).get(key, ()), *definitions(scope).get("." + key, ())):
                line, value = Frame(file, each.value.lineno, ""), each.value
                computed = isinstance(each.statement, ast.Assign) and isinstance(value, (ast.Call, ast.BinOp))
                late = not (begins and line.line <= made)
                fits = not constant or (no_grad_around(line) is not None and _reads(value, key))
                if computed and each.whole and late and fits:
                    found[line] = ast.unparse(each.statement.targets[0])  # type: ignore[attr-defined]
    return found


def _reads(value: ast.expr, key: str) -> bool:
    names = {key_of(node) for node in (*inside(ast.Name, value), *inside(ast.Attribute, value))}
    return bool(names & {key, "." + key})
