"""Finds the line that carries a value with its graph from one training step to the next."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._scopes import called_by, names_read, names_stored
from gradgate.checker.analysis._source import function_at, inside, loops_around, tree_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.events import Frame, Site

PASSES = ("forward", "__call__", "training_step", "step", "loss")


def carried_on(made: Site, backward: Site) -> tuple[Frame, list[str]] | None:
    """Return the line that carries values to the next step, and their names.

    Args:
        made: where the old part of the graph was made.
        backward: the line that back-propagates.
    """
    return _carried(made, backward) or _stored(made, backward)


def _carried(made: Site, backward: Site) -> tuple[Frame, list[str]] | None:
    """Return the line that passes on values from step to step, ``y, state = model(x, state)``, and their names.

    A line of an inner loop doesn't count, because it passes on the value within a step.
    """
    loops = [loop for frame in backward for loop in loops_around(frame)[:1]]
    for frame in made:
        at = Statement.at(frame)
        if at is not None and isinstance(at.node, ast.Assign) and at.loops and at.loops[0] in loops:
            names = names_stored(*at.node.targets) & names_read(at.node.value)
            if names:
                return frame, sorted(names)
    return None


def _stored(made: Site, backward: Site) -> tuple[Frame, list[str]] | None:
    """Return the line that stores a loop's value for the next step, ``self.state = state``, and the value's name.

    The function that holds the loop reads the attribute, too.
    """
    for frame in made if made[:1] != backward[:1] else ():
        function = function_at(frame)
        if not loops_around(frame) or getattr(function, "name", "") not in PASSES:
            continue
        read = {
            ast.unparse(node) for node in inside(ast.Attribute, function) if isinstance(node.ctx, ast.Load)
        }
        stores = [node for node in inside(ast.Assign, function) if ast.unparse(node.targets[0]) in read]
        stores = [node for node in stores if isinstance(node.value, ast.Name)]
        if len(stores) == 1:
            return Frame(frame.file, stores[0].lineno, frame.function), [ast.unparse(stores[0].value)]
    return None


def is_truncated(line: Frame, names: list[str]) -> bool:
    """Return whether the loop detaches the values itself, in truncated back-propagation through time."""
    texts = [ast.unparse(each) for each in inside(ast.stmt, *loops_around(line)[:1])]
    return any(re.match(rf"{name}(\.detach_\(|.*=.*detach)", text) for name in names for text in texts)


def detached_again(at: Statement, *, names: list[str]) -> Fix:
    """Detach the only argument that is the value carried over, unless it is a tuple, such as an LSTM's state."""
    made = [
        node.value for node in inside(ast.Assign, tree_of(at.file)) if ast.unparse(node.targets[0]) in names
    ]
    made += [each.value for each in inside(ast.Return, *called_by(at.file, *made)) if each.value is not None]
    if isinstance(at.value, ast.Name):  # self.state = state
        computed = any(isinstance(each, ast.BinOp) for each in made)
        return (Replace(at.line, names[0], f"{names[0]}.detach()"),) if computed else ()
    calls = [call for call in at.calls() for each in call.args if [ast.unparse(each)] == names]
    if len(calls) != 1 or any(isinstance(each, (ast.Tuple, ast.List)) for each in made):
        return ()
    given = [f"{text}.detach()" if text in names else text for text in map(ast.unparse, calls[0].args)]
    given += map(ast.unparse, calls[0].keywords)
    return (Replace(at.line, ast.unparse(calls[0]), f"{ast.unparse(calls[0].func)}({', '.join(given)})"),)
