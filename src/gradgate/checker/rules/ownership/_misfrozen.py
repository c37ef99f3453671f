"""Finds parameters that a script tries to freeze with an attribute that PyTorch doesn't read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import nodes_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Delete, Fix, Insert
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Frame, Parameter, Stepped


def misfrozen(run: Run, rule: Rule) -> Iterator[Finding]:
    """Yield parameters that steps changed although the script set an attribute to freeze them."""
    moved = frozenset[int]().union(*(event.moved for event in run.of(Stepped)))
    found: dict[Frame, set[int]] = defaultdict(set)
    for number in moved:
        parameter = run.parameters[number]
        if parameter.misfrozen and parameter.trainable:
            line = _setting_line(run, parameter)
            if line is not None:
                found[line].add(number)
    for line, ids in found.items():
        attribute = run.parameters[min(ids)].misfrozen
        of_module = attribute == "requires_grad"
        yield rule.finding(
            line,
            f"Setting {attribute} {'of a module ' if of_module else ''}freezes nothing: {run.log.steps} steps "
            f"still changed {run.names(frozenset(ids))}.",
            why="Python accepts any attribute name, but PyTorch reads only each parameter's requires_grad.",
            advice="Call requires_grad_(False) on the module instead."
            if of_module
            else "The attribute is called requires_grad.",
            fix=partial(_really_frozen, of_module=of_module),
            count=run.log.steps,
            evidence={"parameters": len(ids)},
        )


def _setting_line(run: Run, parameter: Parameter) -> Frame | None:
    """Return the line outside the class that sets the attribute: a class may use the name for its own field."""
    parts = parameter.name.split(".")[:-1]
    for file in files_of({event.site for event in run.of(Stepped)}):
        for node in nodes_of([file]):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if not isinstance(target, ast.Attribute) or target.attr != parameter.misfrozen:
                continue
            of = ast.unparse(target.value).rpartition(".")[2]
            known = of in parts if target.attr == "requires_grad" else of != "self"
            if known and getattr(node.value, "value", None) is False:  # type: ignore[attr-defined]
                return Frame(file, target.lineno, "")
    return None


def _really_frozen(at: Statement, *, of_module: bool) -> Fix:
    """Freeze the object that the attribute was meant to freeze."""
    target = at.node.targets[0] if isinstance(at.node, ast.Assign) else None
    if not isinstance(target, ast.Attribute):
        return ()
    frozen = ast.unparse(target.value)
    text = f"{frozen}.requires_grad_(False)" if of_module else f"{frozen}.requires_grad = False"
    return Insert(text, after=at.line), Delete(at.line)
