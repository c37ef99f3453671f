"""The user's names for optimizers and schedulers."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import statement_at
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


def _assigned_at(made: OptimizerMade | SchedulerMade) -> str:
    """Return the variable that the constructing line assigns, or a line that calls a function which returns it."""
    maker = made.kind
    for frame in made.site:
        statement = statement_at(frame)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            target = statement.targets[0]
            named = isinstance(target, (ast.Name, ast.Attribute)) and called(statement.value) == maker
            return ast.unparse(target).removeprefix("self.") if named else ""
        if not isinstance(statement, ast.Return):
            return ""
        maker = frame.function
    return ""
