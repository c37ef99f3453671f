"""What optimizers are given: parameters that are missing, stand there twice, or are made after them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradgate.checks._finding import Finding
from gradgate.checks.mendings._edit import Edit
from gradgate.checks.mendings._spot import Spot, method


def added(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Give the optimizer what no list holds; hold layers in a list that a module knows of."""
    value = getattr(spot.statement, "value", None)
    if finding.fix.startswith("Put the layers into an nn.ModuleList"):
        if not isinstance(value, (ast.List, ast.ListComp)):
            return []
        known = any(isinstance(one, ast.Name) and one.id == "nn" for one in ast.walk(spot.path[0]))
        return spot.wrapped(value, "nn.ModuleList(" if known else "torch.nn.ModuleList(", ")")
    names = re.match(r"No step moved (.+), in no optimizer's list", finding.message)
    if names is None or not isinstance(value, ast.Call) or not value.args:
        return []
    given = value.args[0]
    roots = {name.partition(".")[0] for name in re.split(r", | and ", names[1]) if not name.endswith(" more")}
    whole = "." in names[1]
    root = roots.pop() if len(roots) == 1 else ""
    mentioned = any(isinstance(one, ast.Name) and one.id == root for one in ast.walk(given))
    if not root.isidentifier() or mentioned or root not in _known_before(spot):
        return []
    more = f"*{root}.parameters()" if whole else root
    if isinstance(given, ast.List) and given.elts:
        if any(isinstance(one, ast.Dict) for one in given.elts):
            more = f'{{"params": {root if not whole else root + ".parameters()"}}}'
        return spot.wrapped(given.elts[-1], "", f", {more}")
    # What else is named there may hold groups, which stand in no list with parameters.
    made = ast.unparse(given.func).rpartition(".")[2] if isinstance(given, ast.Call) else ""
    plain = made in ("parameters", "filter", "chain", "list") or isinstance(given, ast.BinOp)
    return spot.wrapped(given, "[*", f", {more}]") if plain else []


def _known_before(spot: Spot) -> set[str]:
    """Return the names that the function, or the module, has given something to before a statement."""
    arguments = getattr(spot.function, "args", None)
    names = (
        {one.arg for one in ast.walk(arguments) if isinstance(one, ast.arg)}
        if arguments is not None
        else set()
    )
    return names | {
        one.id
        for one in ast.walk(spot.function)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.lineno < spot.statement.lineno
    }


def once(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """List each parameter once."""
    value = getattr(spot.statement, "value", None)
    if not finding.fix.startswith("List each parameter once") or not isinstance(spot.statement, ast.Assign):
        return []
    if isinstance(value, ast.Call) and value.args and re.match(r"[A-Z]", method(spot.statement)):
        value = value.args[0]
    return spot.wrapped(value, "list(dict.fromkeys(", "))") if value is not None else []


def a_list(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Make a list of what an iterator gives only once, where it is made."""
    value = getattr(spot.statement, "value", None)
    if not finding.fix.startswith("Pass model.parameters() anew") or not isinstance(value, ast.Call):
        return []
    name = ast.unparse(value.args[0]) if value.args else ""
    made = [
        one.value
        for one in ast.walk(spot.path[0])
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == name
    ]
    return spot.wrapped(made[0], "list(", ")") if len(made) == 1 else []


def written_into(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Load a copy's values into the model that the optimizer holds."""
    one = spot.statement
    if not isinstance(one, ast.Assign) or not isinstance(one.value, ast.Call) or len(one.value.args) != 1:
        return []
    target, given = spot.source(one.targets[0]), one.value.args[0]
    if method(one) == "deepcopy":
        named = re.search(rf"(?<![\w.]){re.escape(target.removeprefix('self.'))}\.", finding.message)
        text = f"{target}.load_state_dict({spot.source(given)}.state_dict())"
        first = getattr(spot.function, "name", "") == "__init__"  # where there is nothing yet to write into
        return spot.replaced(one, text) if named is not None and not first else []
    return []


def made_later(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Make the optimizer behind the line that makes new parameters, where nothing between needs it."""
    edits = written_into(finding, spot)
    named = re.search(r"made after (\w+),", finding.message)
    if edits or named is None:
        return edits
    makers = [
        one
        for one in spot.block
        if isinstance(one, ast.Assign)
        and ast.unparse(one.targets[0]) == named[1]
        and one.lineno < spot.statement.lineno
    ]
    if len(makers) != 1:
        return []
    maker = makers[0]
    between = [one for one in spot.block if maker.lineno < one.lineno <= spot.statement.lineno]
    used = any(
        isinstance(node, ast.Name) and node.id == named[1] for one in between for node in ast.walk(one)
    )
    if used or spot.statement.lineno != spot.statement.end_lineno:
        return []
    lines = range(maker.lineno, (maker.end_lineno or maker.lineno) + 1)
    return [
        *(Edit(line) for line in lines),
        Edit(spot.statement.lineno, tuple(spot.text(line) for line in lines), instead=False),
    ]


def made_once(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Make the optimizer in front of the loop, where nothing in the loop says how."""
    loop = spot.loops[-1] if spot.loops else None
    if (
        not finding.fix.startswith("Make it once, before the loop")
        or loop is None
        or spot.statement not in loop.body
    ):
        return []
    names = [one for one in ast.walk(loop) if isinstance(one, ast.Name)]
    changed = {one.id for one in names if isinstance(one.ctx, ast.Store) and one is not _target(spot)}
    needed = {one.id for one in spot.nodes() if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    return spot.moved(before=loop) if not needed & changed else []


def _target(spot: Spot) -> ast.AST | None:
    return spot.statement.targets[0] if isinstance(spot.statement, ast.Assign) else None
