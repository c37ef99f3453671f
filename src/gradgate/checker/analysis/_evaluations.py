"""Finds functions that evaluate: they run a model without gradients and never train."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._gradient_modes import without_gradients
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, is_function, own_calls, own_nodes
from gradgate.checker.analysis._source import function_at, spans
from gradgate.events import Backward, Frame, Stepped

_OF_MODELS = ("parameters", "named_parameters", "state_dict")
_RUNS = re.compile(r"loss|eval|accura|score|error|predict|forward", re.IGNORECASE)


def evaluates(run: Run, frame: Frame) -> bool:
    """Return whether a line is in a function that runs a model without gradients and never trains."""
    function = function_at(frame)
    training = {(each.file, each.function) for event in run.of(Backward, Stepped) for each in event.site}
    if function is None or not is_function(function) or (frame.file, frame.function) in training:
        return False
    calls = own_calls(function)
    here = [call for call in calls if spans(call, frame.line)]
    functions = (call.func for call in calls if called(call) in _OF_MODELS)
    read = [each.value for each in functions if isinstance(each, ast.Attribute)]
    models = {ast.unparse(given) for given in (*read, *(given for call in here for given in call.args))}
    off = any(without_gradients(node) is not None for node in (function, *own_nodes(function)))
    return off and any(_runs(call, models) for call in calls if call not in here)


def _runs(call: ast.Call, models: set[str]) -> bool:
    """Return whether a call runs one of the models, or passes a model to a loss or metric."""
    given = any(ast.unparse(each) in models for each in call.args)
    return ast.unparse(call.func) in models or (given and bool(_RUNS.search(called(call))))
