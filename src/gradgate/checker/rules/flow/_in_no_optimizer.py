"""Finds gradients of a network that no optimizer holds."""

from __future__ import annotations

import ast
from functools import partial

from gradgate.checker.analysis._left_out import Left, optimizer_beside
from gradgate.checker.analysis._origins import comprehension_line, list_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.analysis._usage_lines import calling_line
from gradgate.checker.fixes import Fix, PutUnder
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.flow._freezing import frozen, runs_trained, whole_module
from gradgate.events import Backward, Ids, ModeSet, Site

WHY = "The gradients cost memory, and time in each backward pass, but update no parameter."


def of_module(run: Run, left: Left, rule: Rule) -> Finding:
    """Report the gradients of a network that no optimizer holds.

    If nothing shows that the network is fixed on purpose, the advice first offers to add it to the optimizer.
    """
    ids, backward = left.ids, left.backward
    added = [each for several in run.by_backward.values() for each in several if each.atom & ids]
    grows = len(added) > 2 and all(each.cleared is None for each in added)
    times = sum(bool(event.reached & ids) for event in run.of(Backward))
    passes = any(event.beyond & ids for event in run.of(Backward))
    where = calling_line(uses(run, ids, backward), backward) or backward
    named = whole_module(run, ids)
    network = named or "the network"
    off = f"freeze it where it is made: {named}{'.' if named else ''}requires_grad_(False)."
    freeze = f"{off} Don't use torch.no_grad(): gradients of trained parameters flow through the network."
    if not passes:
        freeze = f"run {network} under torch.no_grad(), or {off}"
    if not left.fixed:
        optimizer = optimizer_beside(run, left)
        made = run.made[optimizer][0].site
        listed = comprehension_line(made) or list_line(made) or made
        freeze = (
            f"to train the network, pass its parameters to {run.optimizer(optimizer)}; otherwise {freeze}"
        )
    names = run.words(ids)
    fix = partial(frozen, run=run, ids=ids) if passes else partial(_under_no_grad, names=names)
    return rule.finding(
        where if left.fixed else listed,
        f"{times} backward calls compute gradients of {size(run, ids)} (estimated) for {run.names(ids)}. No "
        f"optimizer uses the gradients{', and nothing clears them' if grows else ''}.",
        why=WHY,
        advice=freeze[:1].upper() + freeze[1:],
        fix=fix if left.fixed and (passes or not runs_trained(run, where)) else (),
        severity="warning" if grows and not _evaluating(run, ids) else None,
        count=times,
        evidence={"parameters": len(ids), "bytes": bytes_of(run, ids), "cleared": not grows},
        about=ids,
    )


def uses(run: Run, ids: Ids, backward: Site) -> list[Site]:
    """Return the sites where the forward pass of a line's loss used these parameters."""
    for event in run.of(Backward):
        if event.site == backward and event.reached & ids:
            found = [site for number, site in (*event.through, *event.uses) if number in ids and site]
            if found:
                return found
    return []


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
