"""Edits the number by which the script or its trainer divides micro-batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, names_stored, own_nodes
from gradgate.checker.analysis._source import inside, path_to
from gradgate.checker.analysis._statement import CLOSED, Statement, method, operand, owner
from gradgate.checker.analysis._trainers import accumulating_library, count_of, counts_labels
from gradgate.checker.fixes import Fix, Insert, Replace, passing
from gradgate.checker.rules.accumulation._window_edits import count_in
from gradgate.events import Frame, Site


def accelerator_around(backward: Frame) -> str:
    """Return the name of the Accelerator whose ``accumulate()`` block calls ``backward()``, or ""."""
    path = path_to(backward.file, backward.line)
    for item in (item for node in path if isinstance(node, ast.With) for item in node.items):
        match item.context_expr:
            case ast.Call(ast.Attribute(value, "accumulate")) if method(path[-1]) == "backward":
                name = ast.unparse(value)
                return "" if owner(path[-1]) == name else name
    return ""


def by_the_accelerator(at: Statement, accelerator: str) -> Fix:
    """Let the Accelerator call ``backward()``."""
    match at.value:
        case ast.Call(ast.Attribute(loss, "backward"), args, keywords) as call:
            given = ", ".join(map(ast.unparse, (loss, *args, *keywords)))
            return (Replace(at.line, ast.unparse(call), f"{accelerator}.backward({given})"),)
    return ()


def undivided(at: Statement) -> Fix:
    """Remove the only division of a statement."""
    divisions = at.divisions()
    if len(divisions) != 1:
        return ()
    left = divisions[0].left
    dividend = ast.unparse(left) if divisions[0] is at.value else operand(left)
    return (Replace(at.line, ast.unparse(divisions[0]), dividend),)


def undivided_argument(at: Statement) -> Fix:
    """Remove the division from the argument of ``update.backward(loss / n)``."""
    match at.calls("backward"):
        case [ast.Call(_, [ast.BinOp(left, ast.Div()) as given, *_])]:
            return (Replace(at.line, ast.unparse(given), ast.unparse(left)),)
    return ()


def divided_by(at: Statement, size: int) -> Fix:
    """Divide by another number, if the statement divides exactly once."""
    divisions = at.divisions()
    if len(divisions) != 1:
        return ()
    new = f"{operand(divisions[0].left)} / {_name_of(at, size) or size}"
    return (Replace(at.line, ast.unparse(divisions[0]), new),)


def divided(at: Statement, size: int) -> Fix:
    """Divide the loss where it is computed or back-propagated."""
    by = _name_of(at, size) or str(size)
    match at.node:
        case ast.Expr(ast.Call(ast.Attribute(ast.BinOp(_, ast.Mult()) as value, "backward"), []) as call):
            new = f"({ast.unparse(value)} / {by}).backward()"
            return (Replace(at.line, ast.unparse(call), new),) if not call.keywords else ()
        case ast.Expr(ast.Call(ast.Attribute(value, "backward"))) if isinstance(value, CLOSED):
            new = f"({ast.unparse(value)} / {by})"
        case ast.Assign([ast.Name()], ast.BinOp(_, ast.Mult() | ast.Div()) as value):
            new = f"{ast.unparse(value)} / {by}"
        case ast.Assign([ast.Name()], value) if isinstance(value, (*CLOSED, ast.BinOp)):
            new = f"{operand(value)} / {by}"
        case _:
            return ()
    return (Replace(at.line, ast.unparse(value), new),)


def _name_of(at: Statement, size: int) -> str:
    """Return the expression for a window's number of micro-batches, or "" if that may differ from ``size``.

    The source shows the number in a step's condition, ``i % number`` or ``count == number``, or as the end of the
    loop's range, ``for _ in range(number)``. The value is known if a constant defines it, or if the loop of the
    condition counts each micro-batch: the number is then the size of the recorded windows.
    """
    own, counted = own_nodes(at.function), ""
    numbers: list[ast.expr] = []
    for node in (each for each in inside(ast.If, at.module) if at.steps(within=each)):
        numbers += [each for each in _numbers(node) if node in own or isinstance(each, ast.Name)]
        count = count_in(at, node.test) if _is_once_in_each(at, node) else None
        others = (
            [ast.unparse(each) for each in node.test.values[1:]] if isinstance(node.test, ast.BoolOp) else []
        )
        if count is not None and count.counts_each and others in ([], [count.last]):
            counted = count.size
    match at.loops:
        case [ast.For(_, ast.Call(ast.Name("range"), [end])) as loop, *_] if not at.steps(within=loop):
            numbers.append(end)
    changed = {ast.unparse(node.target) for node in inside(ast.AugAssign, at.module)}

    def is_known(name: str) -> bool:
        values = at.assigned_to(name)
        constants = [value.value for value in values if isinstance(value, ast.Constant)]
        recorded = name == counted and len(values) < 2 and constants in ([], [size])
        return recorded or (len(values) == 1 and constants == [size])

    named = {
        ast.unparse(each) for each in numbers if isinstance(each, (ast.Name, ast.Attribute, ast.Subscript))
    }
    visible = [each for each in named - changed if at.knows(re.split(r"\W", each)[0]) and is_known(each)]
    return visible[0] if len(visible) == 1 else ""


def _is_once_in_each(at: Statement, step: ast.If) -> bool:
    """Return whether each iteration of the loop around a step's condition runs the statement once."""
    if not at.loops or step not in at.loops[0].body or inside(ast.Continue, at.loops[0]):
        return False
    around = at.path[at.path.index(at.loops[0]) + 1 : -1]
    return all(isinstance(node, ast.With) for node in around)


def _numbers(step: ast.If) -> Iterator[ast.expr]:
    """Yield the numbers that a step's condition counts to: ``i % number``, or ``count == number`` with a reset."""
    stored = names_stored(*step.body)
    for part in ast.walk(step.test):
        match part:
            case ast.BinOp(_, ast.Mod(), number):
                yield number
            case ast.Compare(ast.Name(count), [ast.Eq() | ast.GtE()], [number]) if count in stored:
                yield number


# A trainer's windows


def one_line_fix(run: Run, site: Site, at: Statement, computed: Site = ()) -> Fix:
    """Return the edit that makes a trainer exact, with its import; () unless the file shows exactly one trainer.

    Args:
        run: run of the script.
        site: line of the backward calls to correct.
        at: statement that the finding names, in the file to edit.
        computed: where the script computes the loss, if it does. The edit of a transformers trainer then passes the
            count, and there is no edit if the source doesn't show what the loss counts.
    """
    library = accumulating_library(run, site)
    imported = "ExactAccumulation" if library == "lightning" else "exact"
    if not library or any(name.id == imported for name in inside(ast.Name, at.module)):
        return ()
    made: list[ast.Assign | ast.Expr] = [*inside(ast.Assign, at.module), *inside(ast.Expr, at.module)]
    name = "Trainer" if library == "lightning" else "Accelerator"
    constructed = [node for node in made if method(node) == name]
    change: Fix = ()
    if library == "transformers":
        if method(at.node) == "train" and owner(at.node).isidentifier():
            count = f", {count_of(computed)}" if computed else ""
            if not computed or counts_labels(computed):
                change = (Insert(f"{owner(at.node)} = exact({owner(at.node)}{count})", before=at.line),)
    elif len(constructed) == 1:
        change = _at_the_constructor(constructed[0])
    where = at.line if library == "transformers" else constructed[0].lineno if constructed else 0
    imports = [
        node.lineno
        for node in getattr(at.module, "body", ())
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno < where
    ]
    line = f"from gradgate.integrations.{library} import {imported}"
    return (Insert(line, after=imports[-1]), *change) if imports and change else ()


def _at_the_constructor(made: ast.Assign | ast.Expr) -> Fix:
    """Return the edit that makes ``Accelerator()`` or Lightning's ``Trainer(...)`` exact at its construction."""
    match made:
        case ast.Assign([target], ast.Call() as call) if called(call) == "Accelerator":
            return (Insert(f"exact({ast.unparse(target)})", after=made.lineno),)
        case ast.Assign(_, ast.Call() as call) | ast.Expr(ast.Call() as call) if called(call) == "Trainer":
            return passing(made.lineno, [call], "callbacks=[ExactAccumulation()]")
    return ()
