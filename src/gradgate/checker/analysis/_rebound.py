"""Finds lines that bind the name of an optimizer's tensor to a new tensor, which the optimizer does not hold."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradgate.checker.analysis._gradient_modes import no_grad_around
from gradgate.checker.analysis._parameter_usage import replaced
from gradgate.checker.analysis._run import Run, innermost, once
from gradgate.checker.analysis._scopes import definitions, key_of, scopes_of
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import inside
from gradgate.events import Backward, Frame, Ids, Parameter

_LEAST = 3  # minimum number of backward calls that reach only the new tensor


@dataclass(frozen=True)
class Rebound:
    """An optimizer's tensor whose name a line binds to a new one."""

    optimizer: int
    old: int
    new: Ids  # the new tensors, as far as they are known
    line: Frame
    target: str  # "self.weights"
    calls: int  # backward calls since the line ran
    constant: bool  # the new tensor gets no gradient


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
            found.append(Rebound(optimizer, old.id, new, *lines.popitem(), len(later), constant))
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
