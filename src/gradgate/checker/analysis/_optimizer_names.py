"""The user's names for optimizers."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import function_at, inside, spans, statement_at
from gradgate.events import Log, OptimizerMade, Site


def optimizer_names(log: Log) -> dict[int, str]:
    """Return the variable that holds each optimizer; "optimizer" if it is unknown.

    If the watcher found no variable, because it was assigned again before a step or no step was made, the name is
    read from the line that constructed the optimizer.
    """
    names = dict(log.optimizers)
    for event in log.events:
        if isinstance(event, OptimizerMade) and not names.get(event.optimizer):
            names[event.optimizer] = _assigned_at(event)
    return {number: name or "optimizer" for number, name in names.items()}


def as_written(name: str, site: Site) -> str:
    """Return an optimizer's name with the ``self.`` that the function at these lines writes before it."""
    own = f"self.{name.partition('[')[0]}"
    attributes = inside(ast.Attribute, function_at(site[0])) if site else ()
    return f"self.{name}" if any(ast.unparse(node) == own for node in attributes) else name


def _assigned_at(made: OptimizerMade) -> str:
    """Return the variable that the constructing line assigns, or ""."""
    statement = statement_at(made.site[0]) if made.site else None
    if not isinstance(statement, ast.Assign):
        return ""
    target, value = statement.targets[0], statement.value
    constant = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
    if isinstance(target, (ast.Name, ast.Attribute)) or constant:
        name = ast.unparse(target).removeprefix("self.")
        items = [(f"{name}{index}", item) for index, item in _items(value)] or [(name, value)]
        names = [each for each, item in items if _is_made(made, item)]
        return names[0] if len(names) == 1 else ""
    return ""


def _items(value: ast.expr) -> list[tuple[str, ast.expr]]:
    """Return the items of a dict or list that the source writes out, with their indices: ``['trunk']``, ``[0]``."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [(f"[{ast.unparse(key)}]", item) for key, item in pairs if key is not None]
    items = value.elts if isinstance(value, (ast.List, ast.Tuple)) else []
    return [(f"[{place}]", item) for place, item in enumerate(items)]


def _is_made(made: OptimizerMade, value: ast.expr) -> bool:
    """Return whether an expression is the call that constructs an optimizer."""
    return isinstance(value, ast.Call) and called(value) == made.kind and spans(value, made.site[0].line)
