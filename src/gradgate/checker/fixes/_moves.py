"""Calls that stand at the wrong place, and are put where they belong; calls that are missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

from gradgate.checker.fixes._edit import Edit
from gradgate.checker.fixes._spot import Spot, method, of_its_own, owner
from gradgate.checker.rules._finding import Finding

_MOST_NORMS = 4


def cleared(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Clear behind the step."""
    named = re.match(r"Call ([\w.]+)\.zero_grad\(\)", finding.advice)
    if named is None:
        return []
    name = named[1].removeprefix("self.")
    steps = [one for one in spot.statements("step") if re.search(rf"\b{re.escape(name)}\b", ast.unparse(one))]
    found = re.search(rf"[\w.]*\b{re.escape(name)}\b", ast.unparse(steps[-1])) if steps else None
    if found is None or spot.statements("zero_grad", of=found[0]):
        return []
    return spot.added(f"{found[0]}.zero_grad()", behind=steps[-1])


def clears_too_early(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Move the calls that clear, between a backward call and the steps, behind the steps; or out of the window."""
    if method(spot.statement) != "zero_grad":
        return []
    line = spot.statement.lineno
    backward = [one for one in spot.statements("backward") if one.lineno < line]
    steps = [one for one in spot.statements("step") if one.lineno > line]
    if steps:
        own = [one for one in steps if owner(one) == owner(spot.statement)]
        last = own[-1].lineno if own else line
        again = any(line < one.lineno < last for one in spot.statements("backward"))
        if again and len({owner(one) for one in spot.statements("step")}) > 1:
            return []  # it clears for its own loss, which comes next
        edits = spot.moved(behind=(own or steps)[-1])
        for other in spot.statements("zero_grad") if edits else ():
            # Beside it, and before its own step in the same way.
            first = [
                one for one in spot.block if one.lineno > other.lineno and method(one) in ("step", "backward")
            ]
            if abs(other.lineno - line) == 1 and any(owner(one) == owner(other) for one in first[:2]):
                edits += replace(spot, statement=other).moved(behind=steps[-1])
        return edits
    around = spot.statements_around("step")
    later = [one for one in spot.block if one.lineno > line and isinstance(one, ast.If)]
    inner = [step for one in later for step in spot.statements_around("step", within=one)]
    if inner:
        return spot.moved(behind=inner[-1])
    loop = next((one for one in spot.loops if spot.statement in one.body), None)
    if not around and backward and re.search(r"of (\d+) of \1 backward", finding.message):
        return spot.moved(before=backward[-1])  # in a closure
    if loop is not None and around and all(one.lineno > (loop.end_lineno or 0) for one in around):
        return spot.moved(before=loop)
    return []


def clears_too_late(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Move the call that clears right before the backward call whose step also used the other loss."""
    own = re.search(r"beside that of line (\d+)\.", finding.message)
    if method(spot.statement) != "zero_grad" or own is None:
        return []
    before = [one for one in spot.statements("backward") if one.lineno == int(own[1])]
    if not before:
        return []
    low, high = sorted((before[0].lineno, spot.statement.lineno))
    if any(low < one.lineno < high for one in spot.statements("backward")):
        return []  # it would clear what that one leaves
    return spot.moved(before=before[0])


def clips_elsewhere(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Move the call that clips between backward and step, or in front of the step that is made once a window."""
    if not method(spot.statement).startswith("clip_grad"):
        return []
    if finding.advice.startswith("Clip once, after the last micro-batch"):
        later = [one for one in spot.block if one.lineno > spot.statement.lineno and isinstance(one, ast.If)]
        steps = [step for one in later for step in spot.steps(within=one)]
        return spot.moved(before=steps[0]) if len(steps) == 1 else []
    if "Clip between" not in finding.advice:
        return []
    backward = spot.statements("backward")
    behind = [
        one for one in spot.steps() if one in spot.block and backward and one.lineno > backward[-1].lineno
    ]
    return spot.moved(before=behind[0]) if len(behind) == len(spot.steps()) == 1 else []


def steps_too_early(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Move the step behind the backward call."""
    backward = [one for one in spot.statements("backward") if one.lineno > spot.statement.lineno]
    if (
        method(spot.statement) != "step"
        or not finding.advice.startswith("Clear, call backward()")
        or not backward
    ):
        return []
    other = min((one.lineno for one in spot.steps() if one.lineno > backward[0].lineno), default=10**9)
    return spot.moved(behind=[one for one in backward if one.lineno < other][-1])


def advances_elsewhere(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Move the call that advances the schedule: behind the step, or behind the loop over an epoch's batches."""
    if method(spot.statement) != "step":
        return []
    others = [one for one in spot.steps() if owner(one) != owner(spot.statement)]
    if finding.advice.startswith("Move scheduler.step()"):
        later = [one for one in spot.block if one.lineno > spot.statement.lineno]
        places = [one for one in later if one in others or spot.steps(within=one)]
        inner = [
            step for one in places[:1] if isinstance(one, ast.If) for step in others if _holds(one, step)
        ]
        return spot.moved(behind=[*inner, *places][0]) if places else []
    if finding.advice.startswith(("Call scheduler.step() only where", "Call scheduler.step() after each")):
        return spot.moved(behind=others[0]) if len(others) == 1 else []
    if finding.advice.startswith("Call scheduler.step() once an epoch") and spot.loops:
        within = len(spot.loops) > 1
        return spot.moved(behind=spot.loops[-2 if within else 0]) if within or _in_a_loop(spot) else []
    return []


def _in_a_loop(spot: Spot) -> bool:
    """Say whether the function is called in a loop of the file."""
    name = getattr(spot.function, "name", "")
    loops = [one for one in ast.walk(spot.path[0]) if isinstance(one, (ast.For, ast.While))]
    return any(
        isinstance(one, ast.Call) and ast.unparse(one.func).rpartition(".")[2] == name
        for loop in loops
        for one in ast.walk(loop)
    )


def scaled(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Unscale before clipping, step through the scaler, scale each loss."""
    calls = [
        one
        for one in ast.walk(spot.path[0])
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
    ]
    scalers = {ast.unparse(one.func.value) for one in calls if one.func.attr == "scale"}  # type: ignore[attr-defined]
    if len(scalers) != 1:
        return []
    scaler, value = scalers.pop(), getattr(spot.statement, "value", None)
    if not spot.knows(scaler.partition(".")[0]):
        return []
    if finding.advice.startswith("Call scaler.unscale_"):
        return _unscaled(spot, scaler)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return []
    if finding.advice.startswith("Write scaler.step(") and value.func.attr == "step":
        step = spot.replaced(value, f"{scaler}.step({spot.source(value.func.value)})")
        updated = any(one.func.attr == "update" and ast.unparse(one.func.value) == scaler for one in calls)  # type: ignore[attr-defined]
        last = [] if updated else spot.added(f"{scaler}.update()")
        return [*step, *last] if updated or last else []
    if finding.advice.startswith("Write scaler.scale(loss)") and value.func.attr == "backward":
        return spot.wrapped(value.func.value, f"{scaler}.scale(", ")")
    return []


def _unscaled(spot: Spot, scaler: str) -> Sequence[Edit]:
    later = [one for one in spot.statements("unscale_", of=scaler) if one.lineno > spot.statement.lineno]
    if later:
        return spot.moved(behind=later[0])
    steps = [one for one in spot.statements("step", of=scaler) if one.lineno > spot.statement.lineno]
    given = steps[0].value.args if len(steps) == 1 else []  # type: ignore[attr-defined]
    return spot.added(f"{scaler}.unscale_({ast.unparse(given[0])})", before=spot.statement) if given else []


def mode(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Switch back to training mode: at the start of each epoch, or where the function that evaluates ends."""
    if finding.advice.startswith("Write training=self.training"):
        calls = [
            one
            for one in spot.calls("dropout")
            if ast.unparse(one.func).endswith(("F.dropout", "functional.dropout"))
        ]
        if len(calls) != 1 or not calls[0].args or any(key.arg == "training" for key in calls[0].keywords):
            return []
        last = [*calls[0].args, *(key.value for key in calls[0].keywords)][-1]
        return spot.wrapped(last, "", ", training=self.training") if spot.knows("self") else []
    if method(spot.statement) != "eval":
        return []
    model = owner(spot.statement)
    if spot.loops:
        loop = spot.loops[-1]
        made_there = any(
            isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.id == model.partition(".")[0]
            for one in ast.walk(loop)
        )
        alone = len(spot.loops) == 1 and not made_there
        return spot.added(f"{model}.train()", before=loop.body[0]) if alone else []
    last_one, function = spot.block[-1], spot.function
    leaves = [one for one in of_its_own(function) if isinstance(one, ast.Return)]
    if spot.path[-2] is not function or isinstance(function, ast.Module) or leaves not in ([], [last_one]):
        return []
    if leaves and model in ast.unparse(last_one):
        return []
    # As it was before: what is evaluated may be a teacher, which is never trained.
    back = f"{model}.train(was_training)"
    end = spot.added(back, before=last_one) if leaves else spot.added(back, behind=last_one)
    begin = spot.added(f"was_training = {model}.training", before=spot.statement)
    return [*begin, *end] if begin and end else []


def evaluates_what_is_frozen(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Put the frozen part back into evaluation mode behind train()."""
    named = re.search(r"frozen batch norms? \(([^()]+)\) (?:is|are) in training mode", finding.message)
    if named is None or " more" in named[1] or method(spot.statement) != "train":
        return []
    paths = [name.split(".") for name in re.split(r", | and ", named[1])]
    root = owner(spot.statement)
    last = root.rpartition(".")[2]
    if any(last not in path for path in paths):
        return []
    inner = [path[path.index(last) + 1 :] for path in paths]
    if len(inner) > _MOST_NORMS or not all(inner):
        return []
    # Each by its name: the module that holds them may hold others, which are trained.
    parts = ("".join(f"[{one}]" if one.isdigit() else f".{one}" for one in path) for path in inner)
    return spot.added(*(f"{root}{part}.eval()" for part in parts))


def frozen_for_good(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Drop the gradients of what is frozen, so that no step moves it any more."""
    if finding.advice.startswith("Set the gradients to None") and method(spot.statement) == "zero_":
        target = owner(spot.statement)
        return spot.replaced(spot.statement, f"{target} = None") if target.endswith(".grad") else []
    if not finding.advice.startswith("Set their gradients to None when they are frozen"):
        return []
    value = getattr(spot.statement, "value", None)
    given = value.args if isinstance(value, ast.Call) else [value]
    if [getattr(one, "value", None) for one in given] != [False]:
        return []
    if isinstance(spot.statement, ast.Assign) and isinstance(spot.statement.targets[0], ast.Attribute):
        whose = ast.unparse(spot.statement.targets[0].value)
    elif method(spot.statement) == "requires_grad_":
        whose = owner(spot.statement)
    else:
        return []
    each = any(isinstance(loop, ast.For) and ast.unparse(loop.target) == whose for loop in spot.loops[:1])
    named = re.search(rf"\b{re.escape(whose.removeprefix('self.'))}(?=[,) ])", finding.message)
    return spot.added(f"{whose}.grad = None" if each or named else f"{whose}.zero_grad()")


def _holds(one: ast.AST, other: ast.AST) -> bool:
    return any(node is other for node in ast.walk(one))
