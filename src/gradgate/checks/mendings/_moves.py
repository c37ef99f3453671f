"""Calls that stand at the wrong place, and are put where they belong; calls that are missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

from gradgate.checks._finding import Finding
from gradgate.checks.mendings._edit import Edit
from gradgate.checks.mendings._spot import Spot, method, owner


def cleared(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Clear behind the step."""
    named = re.match(r"Call ([\w.]+)\.zero_grad\(\)", finding.fix)
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
        first = max((one.lineno for one in backward), default=line - 1)
        clearing = [one for one in spot.statements("zero_grad") if first < one.lineno < steps[-1].lineno]
        return [edit for one in clearing for edit in replace(spot, statement=one).moved(behind=steps[-1])]
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
    return spot.moved(before=before[0]) if before else []


def clips_elsewhere(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Move the call that clips between backward and step, or in front of the step that is made once a window."""
    if not method(spot.statement).startswith("clip_grad"):
        return []
    if finding.fix.startswith("Clip once, after the last micro-batch"):
        later = [one for one in spot.block if one.lineno > spot.statement.lineno and isinstance(one, ast.If)]
        steps = [step for one in later for step in spot.statements_around("step", within=one)]
        return spot.moved(before=steps[0]) if steps else []
    if "Clip between" not in finding.fix:
        return []
    backward, steps = spot.statements("backward"), spot.statements("step")
    behind = [one for one in steps if backward and one.lineno > backward[-1].lineno]
    return spot.moved(before=behind[0]) if behind else []


def steps_too_early(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Move the step behind the backward call."""
    backward = [one for one in spot.statements("backward") if one.lineno > spot.statement.lineno]
    if (
        method(spot.statement) != "step"
        or not finding.fix.startswith("Clear, call backward()")
        or not backward
    ):
        return []
    return spot.moved(behind=backward[0])


def advances_elsewhere(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Move the call that advances the schedule: behind the step, or behind the loop over an epoch's batches."""
    if method(spot.statement) != "step":
        return []
    others = [one for one in spot.statements_around("step") if owner(one) != owner(spot.statement)]
    if finding.fix.startswith("Move scheduler.step()"):
        later = [one for one in spot.block if one.lineno > spot.statement.lineno]
        places = [one for one in later if one in others or spot.statements_around("step", within=one)]
        inner = [
            step for one in places[:1] if isinstance(one, ast.If) for step in others if _holds(one, step)
        ]
        return spot.moved(behind=[*inner, *places][0]) if places else []
    if finding.fix.startswith(("Call scheduler.step() only where", "Call scheduler.step() after each")):
        return spot.moved(behind=others[0]) if len(others) == 1 else []
    if finding.fix.startswith("Call scheduler.step() once an epoch") and spot.loops:
        return spot.moved(behind=spot.loops[0])
    return []


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
    if finding.fix.startswith("Call scaler.unscale_"):
        return _unscaled(spot, scaler)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return []
    if finding.fix.startswith("Write scaler.step(") and value.func.attr == "step":
        return spot.replaced(value, f"{scaler}.step({spot.source(value.func.value)})")
    if finding.fix.startswith("Write scaler.scale(loss)") and value.func.attr == "backward":
        return spot.wrapped(value.func.value, f"{scaler}.scale(", ")")
    return []


def _unscaled(spot: Spot, scaler: str) -> Sequence[Edit]:
    later = [one for one in spot.statements("unscale_", of=scaler) if one.lineno > spot.statement.lineno]
    if later:
        return spot.moved(behind=later[0])
    steps = [one for one in spot.statements("step", of=scaler) if one.lineno > spot.statement.lineno]
    given = steps[0].value.args if steps else []  # type: ignore[attr-defined]
    return spot.added(f"{scaler}.unscale_({ast.unparse(given[0])})", before=spot.statement) if given else []


def mode(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Switch back to training mode: at the start of each epoch, or where the function that evaluates ends."""
    if finding.fix.startswith("Write training=self.training"):
        text = spot.text(finding.line)
        told = re.sub(r"(\bdropout\w*\([^()]*)\)", r"\1, training=self.training)", text)
        return [Edit(finding.line, (told,))] if told != text else []
    if method(spot.statement) != "eval":
        return []
    back = f"{owner(spot.statement)}.train()"
    if spot.loops:
        return spot.added(back, before=spot.loops[-1].body[0])
    last = spot.block[-1]
    if spot.path[-2] is not spot.function or isinstance(spot.function, ast.Module):
        return []
    if not isinstance(last, ast.Return):
        # A block at the end may return from within: then nothing behind it is reached.
        leaves = any(isinstance(node, ast.Return) for node in ast.walk(last))
        return [] if leaves else spot.added(back, behind=last)
    return spot.added(back, before=last) if owner(spot.statement) not in ast.unparse(last) else []


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
    shared: list[str] = []
    for parts in zip(*inner, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    if not shared:
        return []
    part = "".join(f"[{one}]" if one.isdigit() else f".{one}" for one in shared)
    return spot.added(f"{root}{part}.eval()")


def frozen_for_good(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Drop the gradients of what is frozen, so that no step moves it any more."""
    if finding.fix.startswith("Set the gradients to None") and method(spot.statement) == "zero_":
        target = owner(spot.statement)
        return spot.replaced(spot.statement, f"{target} = None") if target.endswith(".grad") else []
    if not finding.fix.startswith("Set their gradients to None when they are frozen"):
        return []
    if isinstance(spot.statement, ast.Assign) and isinstance(spot.statement.targets[0], ast.Attribute):
        whose = ast.unparse(spot.statement.targets[0].value)
    elif method(spot.statement) == "requires_grad_":
        whose = owner(spot.statement)
    else:
        return []
    over = spot.loops[0] if spot.loops else None
    each = over is not None and ast.unparse(over.target) == whose if isinstance(over, ast.For) else False
    named = re.search(rf"\b{re.escape(whose.removeprefix('self.'))}(?=[,) ])", finding.message)
    return spot.added(f"{whose}.grad = None" if each or named else f"{whose}.zero_grad()")


def _holds(one: ast.AST, other: ast.AST) -> bool:
    return any(node is other for node in ast.walk(one))
