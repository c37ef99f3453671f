"""The user's names for optimizers."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import statement_at
from gradgate.events import Log, OptimizerMade


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


def _assigned_at(made: OptimizerMade) -> str:
    """Return the variable that the constructing line assigns, or ""."""
    statement = statement_at(made.site[0]) if made.site else None
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return ""
    target = statement.targets[0]
    named = isinstance(target, (ast.Name, ast.Attribute)) and called(statement.value) == made.kind
    return ast.unparse(target).removeprefix("self.") if named else ""
