"""Calls that stand at the wrong place, and are put where they belong; calls that are missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradgate.checker.fixes._edit import Edit
from gradgate.checker.fixes._spot import Spot, method, of_its_own, owner
from gradgate.checker.rules._finding import Finding

_MOST_NORMS = 4


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
