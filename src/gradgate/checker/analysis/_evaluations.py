"""Functions that evaluate: they run a model without gradients, and never train."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import function_at
from gradgate.events import Backward, Frame, Stepped

_NO_GRAD = ("no_grad", "inference_mode")
_RUNS = re.compile(r"loss|eval|accura|score|error|predict|forward", re.IGNORECASE)


def evaluates(run: Run, frame: Frame) -> bool:
    """Say whether a line stands in a function without gradients that runs the model, and that never trains."""
    function = function_at(frame)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    training = {(one.file, one.function) for event in run.of(Backward, Stepped) for one in event.site}
    if (frame.file, frame.function) in training or not _without_gradients(function):
        return False
    models = {
        ast.unparse(call.func.value)
        for call in _calls(function)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("parameters", "named_parameters", "state_dict")
    }
    here = [
        call for call in _calls(function) if call.lineno <= frame.line <= (call.end_lineno or call.lineno)
    ]
    models |= {ast.unparse(argument) for call in here for argument in call.args}
    others = [call for call in _calls(function) if call not in here]
    return any(_runs(call, models) for call in others)


def _calls(function: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def _without_gradients(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    contexts = [
        item.context_expr for node in ast.walk(function) if isinstance(node, ast.With) for item in node.items
    ]
    return any(name in ast.unparse(one) for one in (*function.decorator_list, *contexts) for name in _NO_GRAD)


def _runs(call: ast.Call, models: set[str]) -> bool:
    """Say whether a call runs one of the models, or is a loss function that is given one."""
    name = ast.unparse(call.func)
    if name in models:
        return True
    given = any(ast.unparse(argument) in models for argument in call.args)
    return given and bool(_RUNS.search(name))
