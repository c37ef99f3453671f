"""Freezes a network where it is constructed."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import own_nodes
from gradgate.checker.analysis._source import function_at, inside
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert
from gradgate.events import Backward, Frame, Ids, Site


def whole_module(run: Run, ids: Ids) -> str:
    """Return the name of the outermost module that holds exactly these parameters, or ""."""
    parts = run.name(min(ids)).split(".")[:-1] if ids else []
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        inside = {each.id for each in run.parameters.values() if each.name.startswith(f"{path}.")}
        if inside == ids and all(map(str.isidentifier, parts[:length])):
            return path
    return ""


def networks(run: Run, ids: Ids, besides: Ids, site: Site) -> list[str]:
    """Return the outermost modules around these parameters that hold none of ``besides``, as a line names them."""
    others = [run.name(number).split(".") for number in besides]
    found: dict[str, None] = {}
    for number in sorted(ids):
        path = run.name(number).split(".")[:-1]
        tops = [path[:length] for length in range(1, len(path) + 1)]
        top = next((top for top in tops if all(other[: len(top)] != top for other in others)), [])
        if not top or not all(part.isidentifier() for part in top):
            return []
        found[".".join(top)] = None
    here = {ast.unparse(node) for frame in site for node in own_nodes(function_at(frame) or ast.Pass())}
    return [f"self.{name}" if f"self.{name}" in here else name for name in found]


def turned_off(names: list[str]) -> str:
    """Return the advice to turn off gradients of modules for one loss."""
    if len(names) == 1:
        calls = f"{names[0]}.requires_grad_(False) before the forward pass, {names[0]}.requires_grad_(True)"
    else:
        calls = "call requires_grad_(False) on each before the forward pass, requires_grad_(True)"
    return (
        f"Turn off the gradients of {' and '.join(names) or 'these parameters'} while this loss is computed: "
        f"{calls} after backward()."
    )


def frozen(at: Statement, run: Run, ids: Ids) -> Fix:
    """Freeze a module in the line after its constructor, if the file has one such line."""
    path = whole_module(run, ids)
    if not path:
        return ()
    name = path if path.isidentifier() else f"self.{path.rpartition('.')[2]}"
    made = at.assigned_to(name)
    if len(made) != 1 or not isinstance(made[0], ast.Call) or _grows(at.module, name):
        return ()
    return (Insert(f"{name}.requires_grad_(False)", after=made[0].lineno),)


def _grows(module: ast.AST, name: str) -> bool:
    """Return whether the source adds layers to a module after its constructor."""
    calls = [call.func for call in inside(ast.Call, module)]
    return any(
        isinstance(function, ast.Attribute)
        and function.attr in ("add_module", "register_module", "append", "extend", "insert")
        and ast.unparse(function.value) == name
        for function in calls
    )


def runs_trained(run: Run, where: Site | Frame) -> bool:
    """Return whether a line or its callees use an optimizer's parameters, which wouldn't train under no_grad."""
    line = where if isinstance(where, Frame) else innermost(where)
    uses = (site for event in run.of(Backward) for number, site in event.uses if number in run.owned)
    return any(frame[:2] == line[:2] for site in uses for frame in site)
