"""Finds a new last layer that was frozen together with its pretrained network."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, is_function, last_name
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import nodes_of, path_to
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, FrozenHead, OptimizerMade, Stepped

_FREEZES = re.compile(r"requires_grad(_\((requires_grad=)?| = )False")


def frozen_heads(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report heads that were frozen by a loop over a whole pretrained model, if the run never trains them.

    A layer that is frozen by its name is assumed to be random on purpose.
    """
    moved = frozenset[int]().union(*(event.moved for event in run.of(Stepped)))
    for event in run.of(FrozenHead) if moved else ():
        parameters = [run.parameters[number] for number in event.parameters]
        if any(each.trainable or not each.still for each in parameters):
            continue
        if event.parameters & (run.reached | moved):
            continue
        sites = {each.site for each in run.of(Backward, OptimizerMade)}
        files = files_of(sites | {each.made for each in parameters})
        names = {part for each in parameters for part in each.name.split(".")[1:-1]} - {""}
        roots = {each.root.rpartition(".")[2] for each in parameters}
        where = _freezing_line(files, names, roots) if names else None
        if where is not None:
            yield rule.finding(
                where,
                f"This freezes {run.names(event.parameters)} together with other parameters, {event.beside} of "
                "which were loaded: the last layer keeps its random initial values.",
                why="The trained layers must adapt to a random layer, which limits the accuracy of the model.",
                advice="Set the new layer's requires_grad to True after this line, and pass the layer to the "
                "optimizer. If the layer is random on purpose, freeze it by name.",
                severity="warning",
                evidence={"parameters": len(event.parameters), "loaded": event.beside},
                about=event.parameters,
            )


def _freezing_line(files: tuple[str, ...], names: set[str], roots: set[str]) -> Frame | None:
    """Return the last line that freezes all parameters of a module; None if some line freezes one of ``names``.

    If a line freezes a module whose name is in ``roots``, this line is preferred.
    """
    found: list[tuple[bool, Frame]] = []
    helpers: set[str] = set()
    for file in files:
        for node in nodes_of([file]):
            if not isinstance(node, (ast.Assign, ast.Expr)) or not _FREEZES.search(ast.unparse(node)):
                continue
            path = path_to(file, node.lineno)
            loop = next((part for part in reversed(path) if isinstance(part, ast.For)), None)
            conditions = [part.test for part in path if isinstance(part, ast.If)]
            text = " ".join(map(ast.unparse, [node, *conditions, *([loop.iter] if loop is not None else [])]))
            if any(re.search(rf"\b{re.escape(name)}\b", text) for name in names):
                return None
            helpers |= {part.name for part in path if is_function(part)}
            frozen = _module_of(loop.iter) if loop is not None else _module_of(getattr(node, "value", node))
            if frozen is None:
                return None  # an explicit choice, such as list(model.parameters())[:-2]
            found.append((last_name(frozen) in roots, Frame(file, (loop or node).lineno, "")))
    calls = [node for node in nodes_of(files) if isinstance(node, ast.Call) and called(node) in helpers]
    given = {last_name(each) for call in calls for part in call.args for each in ast.walk(part)}
    if given & names:
        return None
    return max(found, key=lambda each: (each[0], each[1].line))[1] if found else None


def _module_of(value: ast.AST) -> ast.expr | None:
    """Return ``x`` of ``x.parameters()``, ``x.named_parameters()`` and ``x.requires_grad_(False)``, or None."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    known = value.func.attr in ("parameters", "named_parameters", "requires_grad_")
    return value.func.value if known and isinstance(value.func.value, (ast.Name, ast.Attribute)) else None
