"""Optimizer steps don't change any parameter.

## What it does
Compares parameters before and after steps. Reports an optimizer whose learning rate is zero throughout, an
optimizer that always steps before there is a gradient, an optimizer whose ``step`` is never called, and
updates by hand that rebind a name or drop their result.

## Why is this bad?
Nothing is trained. The loss goes up and down with the batches, which looks like slow learning.

## Example
    def sgd(params, lr):
        with torch.no_grad():
            for p in params:
                p = p - lr * p.grad      # a new tensor under the name of the loop

## Use instead
            for p in params:
                p -= lr * p.grad         # in place

## Known limits
A rate of zero at the start of a warm-up is right. A rate that is zero throughout while other optimizers step is
reported as a note. If a run is stopped early, a rate that might still rise is not reported.

## Sources
https://docs.pytorch.org/docs/stable/optim.html, "Taking an optimization step"
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from gradgate.checker.analysis._origins import computed_rate, rate_set_by_hand, rounded_for, rounds
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import tree_of
from gradgate.checker.analysis._statement import Statement, method, operand
from gradgate.checker.fixes import Delete, Fix, Insert, Move, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import (
    Backward,
    Frame,
    Ids,
    Scheduled,
    SchedulerMade,
    Site,
    Stepped,
    Written,
)

_WHY = "Nothing is trained: the parameters keep their initial values."
_LEAST = 3  # steps, or backward calls
_RESULTS = ("sub", "add", "mul", "div", "addcmul", "addcdiv", "lerp")


def _judge(run: Run) -> Iterator[Finding]:
    by_hand = list(_by_hand(run))
    yield from by_hand
    for optimizer in run.made if not by_hand else ():
        steps = [event for event in run.of(Stepped) if event.optimizer == optimizer]
        finding = _not_stepped(run, optimizer) if not steps else _still(run, optimizer, steps)
        if finding is not None:
            yield finding


def _held(run: Run, optimizer: int) -> Ids:
    return frozenset().union(*(group.parameters for event in run.made[optimizer] for group in event.groups))


def _still(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    if len(steps) < _LEAST or any(event.moved for event in steps):
        return None
    if not any(event.used for event in steps):
        return _without_gradient(run, optimizer, steps)
    without_rate = all(event.lr and not any(event.lr) for event in steps)
    return (
        _without_rate(run, optimizer, steps)
        if without_rate and sum(e.seen for e in steps) >= _LEAST
        else None
    )


def _without_rate(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    made = run.made[optimizer][0]
    if run.ended != "finished" or any(group.lr is None for group in made.groups):
        return None
    where: Site | Frame = made.site
    advice = "Give the optimizer a learning rate above zero."
    schedules = {
        event.scheduler: event.site for event in run.of(SchedulerMade) if event.optimizer == optimizer
    }
    positive = any(group.lr for group in made.groups)
    by_hand = None if schedules else rate_set_by_hand(steps[0].site)
    computed = by_hand or computed_rate(made.site)
    if positive and schedules:
        if sum(event.scheduler in schedules for event in run.of(Scheduled)) < 2:
            return None  # a schedule that isn't advanced is another mistake
        where = schedule = [*schedules.values()][-1]
        computed, advice = (
            rounded_for(schedule),
            "Let the schedule's factor be above zero from the first step on.",
        )
    elif positive and by_hand is None:
        return None
    if computed is not None:
        where, advice = computed, f"Line {computed.line} sets the rate to 0: let it be above zero there."
        if rounds(computed):
            advice = "Don't round the rate to zero: / instead of //."
    others = any(event.moved for event in run.of(Stepped))
    return RULE.finding(
        where,
        f"The learning rate of {run.optimizer(optimizer)} is 0 in all of its {len(steps)} steps.",
        why=_WHY,
        advice=advice,
        fix=_not_rounded,
        severity="info" if others else None,
        count=len(steps),
        evidence={"steps": len(steps), "lr": 0.0},
        about=_held(run, optimizer),
    )


def _without_gradient(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    """Report steps that come before their backward; clearing after it is another mistake."""
    held = _held(run, optimizer)
    reaching = [n for n, event in run.numbered(Backward) if event.reached & held]  # type: ignore[attr-defined]
    first = next(n for n, event in run.numbered(Stepped) if event is steps[0])
    if len(reaching) < 2 or first > reaching[0]:
        return None
    return RULE.finding(
        steps[0].site,
        f"{run.optimizer(optimizer)} steps before backward(): none of its {len(steps)} steps has a gradient.",
        why=_WHY,
        advice="Clear, call backward(), then step.",
        fix=_after_backward,
        count=len(steps),
        evidence={"steps": len(steps), "backward_calls": len(reaching)},
        about=held,
    )


def _not_stepped(run: Run, optimizer: int) -> Finding | None:
    """Report an optimizer that never steps: its ``step`` is named and not called, or doesn't occur at all."""
    held = _held(run, optimizer)
    reaching = [event for event in run.of(Backward) if event.reached & held]
    if len(reaching) < _LEAST or any(run.owners[parameter] - {optimizer} for parameter in held):
        return None
    if any(isinstance(event, Written) and event.target == "value" for event in run.events):
        return None
    name = run.optimizer(optimizer)
    files = {frame.file for event in (*reaching, *run.made[optimizer]) for frame in event.site}
    named = [Frame(file, line, "") for file in files for line in _named_only(tree_of(file))]
    if not named and (run.ended != "finished" or any(_calls_step(tree_of(file), name) for file in files)):
        return None
    if not named and not all(
        run.parameters[parameter].still for parameter in held if parameter in run.parameters
    ):
        return None
    return RULE.finding(
        named[0] if named else reaching[-1].site,
        f"{name}.step is never called: {len(reaching)} backward calls give gradients that no step uses.",
        why=_WHY,
        advice=f"Call {name}.step(), with parentheses, after backward().",
        fix=_called,
        count=len(reaching),
        evidence={"backward_calls": len(reaching)},
        about=held,
    )


def _named_only(tree: ast.Module | None) -> Iterator[int]:
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute) and node.value.attr == "step":
            yield node.lineno


def _calls_step(tree: ast.Module | None, name: str) -> bool:
    """Say whether the source steps what may be the optimizer, or what steps it."""
    nodes = ast.walk(tree) if tree is not None else ()
    steps = [
        ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "step"
    ]
    return any(name in of or re.search(r"opt|scaler|accelerator|engine", of, re.IGNORECASE) for of in steps)


# Updates by hand


def _by_hand(run: Run) -> Iterator[Finding]:
    if any(event.moved for event in run.of(Stepped)) or run.of(Written):
        return
    stepped = {number for number, owners in run.owners.items() if any(run.stepping[each] for each in owners)}
    counts = Counter(number for event in run.of(Backward) for number in event.reached - stepped)
    ids = frozenset(number for number, count in counts.items() if count >= _LEAST)
    if not ids or not all(run.parameters[number].still for number in ids):
        return
    calls = [event for event in run.of(Backward) if event.reached & ids]
    for file in {frame.file for event in calls for frame in event.site}:
        for line in _lost_updates(tree_of(file)):
            yield RULE.finding(
                Frame(file, line, ""),
                "This update creates a new tensor instead of changing the parameter: no parameter changes in "
                f"{len(calls)} backward calls.",
                why=_WHY,
                advice="Update in place, under torch.no_grad(): p -= lr * p.grad.",
                fix=_in_place,
                count=len(calls),
                evidence={"backward_calls": len(calls)},
                about=ids,
            )


def _lost_updates(tree: ast.Module | None) -> Iterator[int]:
    """Yield lines that compute an update from a gradient and bind it to a loop's or argument's name, or to none."""
    for scope in ast.walk(tree) if tree is not None else ():
        if isinstance(scope, ast.FunctionDef):
            names = {argument.arg for argument in scope.args.args}
        elif isinstance(scope, ast.For):
            names = {name.id for name in ast.walk(scope.target) if isinstance(name, ast.Name)}
        else:
            continue
        for node in ast.walk(scope):
            if (
                isinstance(node, (ast.Assign, ast.Expr))
                and _of_gradient(node.value)
                and _is_lost(node, names)
            ):
                yield node.lineno


def _is_lost(node: ast.Assign | ast.Expr, names: set[str]) -> bool:
    if isinstance(node, ast.Expr):  # p.sub(lr * p.grad), without the underscore
        return method(node) in _RESULTS
    target = node.targets[0]
    if isinstance(target, ast.Subscript):  # a state_dict is a new one at each call
        return ast.unparse(target.value).endswith(".state_dict()")
    if not isinstance(target, ast.Name) or not isinstance(node.value, ast.BinOp):
        return False
    used = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
    return target.id in names & used


def _of_gradient(node: ast.AST) -> bool:
    return any(
        "grad" in name.lower()
        for inner in ast.walk(node)
        for name in [getattr(inner, "attr", None) or getattr(inner, "id", None) or ""]
    )


# The fix


def _after_backward(at: Statement) -> Fix:
    """Move the step after the backward calls that come before another step."""
    backward = at.later("backward")
    if method(at.node) != "step" or not backward:
        return ()
    later = [step.lineno for step in at.steps() if step.lineno > backward[0].lineno]
    last = [node.lineno for node in backward if node.lineno < min(later, default=10**9)][-1]
    return (Move(at.line, after=last),)


def _called(at: Statement) -> Fix:
    """Call the step that is only named."""
    value = at.value
    named = isinstance(at.node, ast.Expr) and isinstance(value, ast.Attribute) and value.attr == "step"
    return (Replace(at.line, ast.unparse(value), f"{ast.unparse(value)}()"),) if named and value else ()


def _in_place(at: Statement) -> Fix:
    """Write ``p -= ...`` for ``p = p - ...``, where that is under no_grad already."""
    node, value = at.node, at.value
    quiet = any("no_grad" in ast.unparse(part.items[0]) for part in at.path if isinstance(part, ast.With))
    if not quiet or not isinstance(node, ast.Assign) or not isinstance(value, ast.BinOp):
        return ()
    target = ast.unparse(node.targets[0])
    if not isinstance(value.op, ast.Sub) or ast.unparse(value.left) != target:
        return ()
    return (Insert(f"{target} -= {ast.unparse(value.right)}", after=at.line), Delete(at.line))


def _not_rounded(at: Statement) -> Fix:
    """Divide without rounding, where the statement computes a rate."""
    rounded = [
        node for node in at.expressions() if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    ]
    around = f"{getattr(at.function, 'name', '')} {ast.unparse(at.node)}"
    if len(rounded) != 1 or not re.search("lr|rate|lambda|warm|factor", around, re.IGNORECASE):
        return ()
    for holder in at.around(rounded[0]):
        if isinstance(holder, ast.Lambda):
            break
        index = isinstance(holder, ast.Subscript)
        if index or (
            isinstance(holder, ast.Call) and ast.unparse(holder.func) not in ("min", "max", "float")
        ):
            return ()  # where a whole number is wanted
    new = f"{operand(rounded[0].left)} / {operand(rounded[0].right)}"
    return (Replace(at.line, ast.unparse(rounded[0]), new),)


RULE = Rule("GG304", "ineffective-step", "error", __doc__ or "", _judge)
