"""What optimizers are given: parameters that are missing, stand there twice, or are made after them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradgate.checker.fixes._edit import Edit
from gradgate.checker.fixes._spot import Spot, method, root_of
from gradgate.checker.rules._finding import Finding


def added(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Give the optimizer what no list holds; hold layers in a list that a module knows of."""
    value = getattr(spot.statement, "value", None)
    if finding.advice.startswith("Put the layers into an nn.ModuleList"):
        return _in_a_module_list(spot, value)
    names = re.match(r"No step moved (.+), in no optimizer's list", finding.message)
    if names is None or not isinstance(value, ast.Call) or not value.args:
        return []
    given = value.args[0]
    roots = {name.partition(".")[0] for name in re.split(r", | and ", names[1]) if not name.endswith(" more")}
    whole = "." in names[1]
    root = roots.pop() if len(roots) == 1 else ""
    mentioned = any(isinstance(one, ast.Name) and one.id == root for one in ast.walk(given))
    if not root.isidentifier() or mentioned or not spot.knows(root) or (whole and not _is_module(spot, root)):
        return []
    more = f"*{root}.parameters()" if whole else root
    if isinstance(given, ast.List) and given.elts:
        if all(isinstance(one, ast.Dict) for one in given.elts):
            more = f'{{"params": {root + ".parameters()" if whole else "[" + root + "]"}}}'
        elif not all(isinstance(one, ast.Starred) and _gives_parameters(one.value) for one in given.elts):
            return []
        return spot.wrapped(given.elts[-1], "", f", {more}")
    # What else is named there may hold groups, which stand in no list with parameters.
    return spot.wrapped(given, "[*", f", {more}]") if _gives_parameters(given) else []


def _gives_parameters(node: ast.AST) -> bool:
    """Say whether an expression gives parameters for sure, and not groups of them."""
    if isinstance(node, ast.BinOp):
        return _gives_parameters(node.left) and _gives_parameters(node.right)
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    if name in ("filter", "chain", "list"):
        return bool(node.args) and all(
            map(_gives_parameters, node.args[1:] if name == "filter" else node.args)
        )
    return name == "parameters"


def _is_module(spot: Spot, name: str) -> bool:
    """Say whether something is used as a module is: called, put into a mode, asked for its parameters."""
    uses = {f"{name}.{method}" for method in ("parameters", "zero_grad", "train", "eval")} | {name}
    return any(isinstance(one, ast.Call) and ast.unparse(one.func) in uses for one in ast.walk(spot.path[0]))


def _in_a_module_list(spot: Spot, value: ast.AST | None) -> Sequence[Edit]:
    """Hold modules in a list that a module knows of, where nothing but modules is in it."""
    if not isinstance(spot.statement, ast.Assign) or not isinstance(value, (ast.List, ast.ListComp)):
        return []
    tree, name = spot.path[0], ast.unparse(spot.statement.targets[0])
    own = {
        one.name
        for one in ast.walk(tree)
        if isinstance(one, ast.ClassDef) and any("Module" in ast.unparse(base) for base in one.bases)
    }
    for one in value.elts if isinstance(value, ast.List) else [value.elt]:
        made = ast.unparse(one.func) if isinstance(one, ast.Call) else ""
        if made not in own and not re.fullmatch(r"(torch\.)?nn\.(?!Parameter)[A-Z]\w+", made):
            return []
    added_up = any(
        isinstance(one, ast.BinOp) and name in (ast.unparse(one.left), ast.unparse(one.right))
        for one in ast.walk(tree)
    )
    known = any(isinstance(one, ast.Name) and one.id == "nn" for one in ast.walk(tree))
    return (
        spot.wrapped(value, "nn.ModuleList(" if known else "torch.nn.ModuleList(", ")")
        if not added_up
        else []
    )


def once(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """List each parameter once."""
    value = getattr(spot.statement, "value", None)
    if not finding.advice.startswith("List each parameter once") or not isinstance(
        spot.statement, ast.Assign
    ):
        return []
    if isinstance(value, ast.Call) and re.match(r"[A-Z]", method(spot.statement)):
        value = value.args[0] if value.args and isinstance(value.args[0], (ast.Call, ast.BinOp)) else None
    groups = value is None or any(isinstance(one, (ast.Dict, ast.keyword)) for one in ast.walk(value))
    return spot.wrapped(value, "list(dict.fromkeys(", "))") if value is not None and not groups else []


def written_into(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Load a copy's values into the model that the optimizer holds."""
    one = spot.statement
    if not isinstance(one, ast.Assign) or not isinstance(one.value, ast.Call) or len(one.value.args) != 1:
        return []
    if method(one) != "deepcopy" or getattr(spot.function, "name", "") == "__init__":
        return []  # at first there is nothing to write into
    target, given = spot.source(one.targets[0]), one.value.args[0]
    named = re.search(rf"(?<![\w.]){re.escape(target.removeprefix('self.'))}\.", finding.message)
    text = f"{target}.load_state_dict({spot.operand(given)}.state_dict())"
    return spot.replaced(one, text) if named is not None else []


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
    used = any(_speaks_of(spot, one, named[1]) for one in between)
    if used or not spot.alone or not spot.has_its_lines(maker):
        return []
    lines = range(maker.lineno, (maker.end_lineno or maker.lineno) + 1)
    return [
        *(Edit(line) for line in lines),
        Edit(spot.statement.lineno, tuple(spot.text(line) for line in lines), instead=False),
    ]


def _speaks_of(spot: Spot, one: ast.AST, name: str) -> bool:
    """Say whether a statement uses a name, or calls a function of the file that does."""
    called = {ast.unparse(call.func) for call in ast.walk(one) if isinstance(call, ast.Call)}
    functions = [
        each
        for each in ast.walk(spot.path[0])
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name in called
    ]
    places = [one, *functions]
    return any(isinstance(node, ast.Name) and node.id == name for place in places for node in ast.walk(place))


def made_once(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Make the optimizer in front of the loop, where nothing in the loop says how."""
    loop, one = spot.loops[-1] if spot.loops else None, spot.statement
    if not finding.advice.startswith("Make it once, before the loop") or not isinstance(one, ast.Assign):
        return []
    if loop is None or one not in loop.body:
        return []
    made = ast.unparse(one.targets[0])
    changed = set()
    for node in ast.walk(loop):
        stored = isinstance(getattr(node, "ctx", None), ast.Store) and node is not one.targets[0]
        changed |= {root_of(node)} if stored else set()
        given = node.value.args if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else []
        if node is not one and made in map(ast.unparse, given):
            return []  # a schedule that is made of it each time begins anew each time
    needed = {
        node.id for node in spot.nodes() if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return spot.moved(before=loop) if not needed & changed else []
