"""The user's names for optimizers and schedulers."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import function_at, inside, spans, statement_at
from gradgate.checker.analysis._statement import method, owner
from gradgate.events import Log, OptimizerMade, SchedulerMade, Site


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


def scheduler_name(made: SchedulerMade, call: Site = ()) -> str:
    """Return the object on which a line calls a scheduler's ``step``, or the variable of the scheduler.

    The result is "scheduler" if both are unknown.
    """
    line = statement_at(call[0]) if call else None
    known = owner(line) if line is not None and method(line) == "step" else ""
    return known.removeprefix("self.") or _assigned_at(made) or "scheduler"


def as_written(name: str, site: Site) -> str:
    """Return an optimizer's name as the function at these lines writes it: with ``self.`` or without."""
    own = f"self.{name.partition('[')[0]}"
    attributes = inside(ast.Attribute, function_at(site[0])) if site else ()
    return f"self.{name}" if any(ast.unparse(node) == own for node in attributes) else name


def _assigned_at(made: OptimizerMade | SchedulerMade) -> str:
    """Return the variable to which the script assigns a new object, perhaps through functions that return it."""
    maker = made.kind
    for frame in made.site:
        statement = statement_at(frame)
        if isinstance(statement, ast.Assign):
            return _item_made(statement, maker, frame.line)
        if not isinstance(statement, ast.Return):
            return ""
        maker = frame.function
    return ""


def _item_made(statement: ast.Assign, maker: str, line: int) -> str:
    """Return the variable, or the item of its dict or list, to which a line assigns the result of a call."""
    target, value = statement.targets[0], statement.value
    constant = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
    if not isinstance(target, (ast.Name, ast.Attribute)) and not constant:
        return ""
    name = ast.unparse(target).removeprefix("self.")
    items = [(f"{name}{index}", item) for index, item in _items(value)] or [(name, value)]
    names = [
        each
        for each, item in items
        if isinstance(item, ast.Call) and called(item) == maker and spans(item, line)
    ]
    return names[0] if len(names) == 1 else ""


def _items(value: ast.expr) -> list[tuple[str, ast.expr]]:
    """Return the items of a dict or list that the source writes out, with their indices: ``['trunk']``, ``[0]``."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [(f"[{ast.unparse(key)}]", item) for key, item in pairs if key is not None]
    items = value.elts if isinstance(value, (ast.List, ast.Tuple)) else []
    return [(f"[{place}]", item) for place, item in enumerate(items)]
