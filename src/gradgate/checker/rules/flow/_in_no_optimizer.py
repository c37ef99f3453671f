"""Finds gradients of a network that no optimizer holds, names the network, and freezes it."""

from __future__ import annotations

import ast
from functools import partial

from gradgate.checker.analysis._left_out import Left, optimizer_beside
from gradgate.checker.analysis._origins import comprehension_line, list_line
from gradgate.checker.analysis._queries import calling_line, module_without, within
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import last_name, own_nodes
from gradgate.checker.analysis._source import function_at, inside
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert, PutUnder
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, Ids, ModeSet, Site

WHY = "The gradients cost memory, and time in each backward pass, but update no parameter."
_NOT_TRAINED = (
    "No step changes these parameters. If they should not train, their gradients only cost memory and time."
)


def of_module(run: Run, left: Left, rule: Rule) -> Finding:
    """Report the gradients of a network that no optimizer holds.

    If nothing shows that the network is fixed on purpose, the advice first offers to add it to the optimizer.
    """
    ids, backward = left.ids, left.backward
    added = [each for several in run.by_backward.values() for each in several if each.atom & ids]
    grows = len(added) > 2 and all(each.cleared is None for each in added)
    calls = run.calls_reaching(ids)
    times, passes = len(calls), any(event.beyond & ids for event in run.of(Backward))
    where = calling_line(uses(run, ids, backward), backward) or innermost(backward)
    named = whole_module(run, ids)
    network = named or "the network"
    off = f"freeze it where it is made: {named}{'.' if named else ''}requires_grad_(False)."
    freeze = f"{off} Don't use torch.no_grad(): gradients of trained parameters flow through the network."
    if not passes:
        freeze = f"run {network} under torch.no_grad(), or {off}"
    alone = all(event.reached <= ids and not event.others for event in calls)  # the loss trains nothing else
    fixed = left.fixed and not (alone and run.made)
    if not fixed:
        optimizer = optimizer_beside(run, left)
        made = run.made[optimizer][0].site
        listed = comprehension_line(made) or list_line(made) or made
        freeze = (
            f"to train the network, pass its parameters to {run.optimizer(optimizer)}; otherwise {freeze}"
        )
    names = run.words(ids)
    fix = partial(_frozen, run=run, ids=ids) if passes else partial(_under_no_grad, names=names)
    return rule.finding(
        where if fixed else listed,
        f"{times} backward calls compute gradients of {size(run, ids)} (estimated) for {run.names(ids)}. No "
        f"optimizer uses the gradients{', and nothing clears them' if grows else ''}.",
        why=WHY if fixed else _NOT_TRAINED,
        advice=freeze[:1].upper() + freeze[1:],
        fix=fix if fixed and (passes or not _runs_trained(run, where)) else (),
        severity="warning" if grows and not _evaluating(run, ids) else None,
        count=times,
        evidence={"parameters": len(ids), "bytes": bytes_of(run, ids), "cleared": not grows},
        about=ids,
    )


def uses(run: Run, ids: Ids, backward: Site) -> list[Site]:
    """Return the sites where the forward pass of a line's loss used these parameters."""
    calls = (event for event in run.calls_at(backward) if event.reached & ids)
    found = (
        [site for number, site in (*each.through, *each.uses) if number in ids and site] for each in calls
    )
    return next(filter(None, found), [])


def bytes_of(run: Run, ids: Ids) -> int:
    """Return the memory that the gradients of these parameters take."""
    return sum(run.parameters[number].nbytes for number in ids if number in run.parameters)


def size(run: Run, ids: Ids) -> str:
    """Return the memory that the gradients of these parameters take, as text."""
    number = float(bytes_of(run, ids))
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def _evaluating(run: Run, ids: Ids) -> bool:
    """Return whether a network is in evaluation mode for the whole run, so it is not trained."""
    modes = [event.training for event in run.of(ModeSet) if event.parameters & ids]
    return bool(modes) and not any(modes)


def _under_no_grad(at: Statement, names: set[str]) -> Fix:
    """Put the call of a network under ``no_grad``, if the statement assigns its output and does nothing else."""
    node = at.node
    if not isinstance(node, ast.Assign) or len(node.targets) > 1 or not isinstance(node.targets[0], ast.Name):
        return ()
    value: ast.expr = node.value
    while isinstance(value, (ast.Attribute, ast.Subscript)) or (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _has_call(value.func)
    ):
        value = value.func if isinstance(value, ast.Call) else value.value
    if (
        not isinstance(value, ast.Call)
        or any(map(_has_call, value.args))
        or last_name(value.func) not in names
    ):
        return ()
    return (PutUnder(at.line, "with torch.no_grad():"),)


def _has_call(node: ast.AST) -> bool:
    return bool(inside(ast.Call, node))


def whole_module(run: Run, ids: Ids) -> str:
    """Return the name of the outermost module that holds exactly these parameters, or ""."""
    path = ".".join(module_without(run, min(ids), run.parameters.keys() - ids)) if ids else ""
    return path if ids <= within(run, path) and all(map(str.isidentifier, path.split("."))) else ""


def networks(run: Run, ids: Ids, besides: Ids, site: Site) -> list[str]:
    """Return the outermost modules that hold these parameters and none of ``besides``, by their names at a line."""
    found: dict[str, None] = {}
    for number in sorted(ids):
        top = module_without(run, number, besides)
        if not top or not all(map(str.isidentifier, top)):
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


def _frozen(at: Statement, run: Run, ids: Ids) -> Fix:
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


def _runs_trained(run: Run, line: Frame) -> bool:
    """Return whether a line or its callees use an optimizer's parameters, which wouldn't train under no_grad."""
    uses = (site for event in run.of(Backward) for number, site in event.uses if number in run.owned)
    return any(frame[:2] == line[:2] for site in uses for frame in site)
