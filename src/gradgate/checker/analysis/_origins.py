"""Finds the line to change, such as one that computes a learning rate or builds a list of parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

from gradgate.checker.analysis._gradient_modes import requires_grad
from gradgate.checker.analysis._scopes import (
    Scope,
    argument,
    called,
    definitions,
    functions,
    key_of,
    last_name,
    part_of,
    returned,
    scope_at,
    scopes_of,
)
from gradgate.checker.analysis._slices import Slice, files_of
from gradgate.checker.analysis._source import inside, loops_around, nodes_of, statement_at, tree_of
from gradgate.events import Backward, Frame, Ids, Log, Site

# Calls that make a tensor of values that exist already, and names of values that a search may start from
_CONVERSIONS = ("tensor", "as_tensor", "asarray", "from_numpy", "FloatTensor", "DoubleTensor")
_INITIAL = re.compile(
    r"rand|zeros|ones|full|eye|normal|uniform|clone|copy|init|start|guess|Parameter", re.IGNORECASE
)


def computed_rate(site: Site) -> Frame | None:
    """Return the line that computes an optimizer's learning rate, if that is not the optimizer's own line."""
    scope, calls = scope_at(site[0]), inside(ast.Call, statement_at(site[0]))
    rates = [rate for call in calls if (rate := argument(call, 1, "lr")) is not None]
    values = [each.value for rate in rates if scope for each in definitions(scope).get(key_of(rate), ())]
    computed = (value for value in values if isinstance(value, (ast.BinOp, ast.Call)))
    return next((site[0]._replace(line=value.lineno) for value in computed), None)


def rate_set_by_hand(step: Site) -> Frame | None:
    """Return the line that computes, or rounds, the learning rate that a script writes into groups."""
    for file in files_of([step]):
        assigned = inside(ast.Assign, tree_of(file))
        keys = (getattr(getattr(node.targets[0], "slice", None), "value", None) for node in assigned)
        written = [node for node, key in zip(assigned, keys, strict=True) if key == "lr"]
        if written:
            found = _rounding(file, [node.value for node in written])
            return Frame(file, found or written[-1].lineno, "")
    return None


def rounded_for(made: Site) -> Frame | None:
    """Return the line that rounds the factor of a schedule, if there is one."""
    statement = statement_at(made[0]) if made else None
    found = _rounding(made[0].file, [statement]) if statement is not None else 0
    return Frame(made[0].file, found, "") if found else None


def rounds(frame: Frame) -> bool:
    """Return whether a statement divides with ``//``."""
    return bool(inside(ast.FloorDiv, statement_at(frame)))


def _rounding(file: str, parts: list[ast.AST]) -> int:
    """Return the line of a ``//`` in these expressions or in the definitions of their names, or 0."""
    names = {last_name(node) for node in inside(ast.AST, *parts)}
    for node in nodes_of([file]):
        if isinstance(node, ast.Assign) and names & set(map(last_name, node.targets)):
            parts = [*parts, node.value]
        elif isinstance(node, ast.FunctionDef) and node.name in names:
            parts = [*parts, *node.body]
    return next((node.lineno for node in inside(ast.BinOp, *parts) if isinstance(node.op, ast.FloorDiv)), 0)


def length_line(site: Site) -> tuple[Frame | None, bool]:
    """Return the line that computes a schedule's length from the length of the data, and whether the line divides.

    A division by the number of samples in a batch doesn't count, because it gives the number of batches.
    """
    for frame in site:
        scope, calls = scope_at(frame), inside(ast.Call, statement_at(frame))
        given = [each for call in calls for each in call.args[1:]]
        given += [keyword.value for call in calls for keyword in call.keywords]
        for file, node in Slice([(scope, each) for each in given] if scope else (), files_of([site])).nodes:
            if isinstance(node, ast.Call) and called(node) == "len":
                statement = statement_at(Frame(file, node.lineno, "")) or node
                divisors = {
                    ast.unparse(each.right)
                    for each in ast.walk(statement)
                    if isinstance(each, ast.BinOp) and isinstance(each.op, (ast.Div, ast.FloorDiv))
                }
                return Frame(file, statement.lineno, frame.function), bool(divisors - _batch_sizes(file))
    return None, False


def _batch_sizes(file: str) -> set[str]:
    """Return the expressions that a file passes as ``batch_size``, to ``split``, or as the step of a ``range``."""
    calls = inside(ast.Call, tree_of(file))
    sizes = [each.value for call in calls for each in call.keywords if each.arg == "batch_size"]
    sizes += [call.args[0] for call in calls if called(call) == "split" and call.args]
    sizes += [call.args[2] for call in calls if called(call) == "range" and len(call.args) > 2]
    return set(map(ast.unparse, sizes))


def counts_as_a_loop_does(made: Site, call: Site) -> bool:
    """Return whether a schedule's length is the number of iterations of an outer loop.

    Both numbers are read from the source, as in ``T_max=args.epochs`` and ``for epoch in range(args.epochs)``.
    They must have the same name and no factor.
    """
    loops = [loop for frame in call for loop in loops_around(frame)]
    stops = [
        part.args[-1]
        for loop in loops[1:]
        for part in ast.walk(getattr(loop, "iter", ast.Tuple([])))
        if isinstance(part, ast.Call) and called(part) in ("range", "trange") and part.args
    ]
    names = {last_name(stop.left if isinstance(stop, ast.BinOp) else stop) for stop in stops} - {""}
    statement = statement_at(made[0]) if made else None
    parts: list[ast.AST] = [statement] if statement is not None else []
    for part in parts:  # grows during the loop
        if last_name(part) in names:
            return True
        product = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult)
        parts += [node for node in ast.iter_child_nodes(part) if not (product and last_name(node))]
    return False


def list_line(site: Site, files: Iterable[str] = ()) -> Frame | None:
    """Return the line that builds an optimizer's list, if the list has a name or a function returns it."""
    scope = scope_at(site[0]) if site else None
    for call in reversed(_calls_at(site)):
        value = call.args[0] if call.args and called(call)[:1].isupper() else None
        if scope is not None and (found := _built_at(scope, value, files or (scope.file,))) is not None:
            return found
    return None


def _calls_at(site: Site) -> list[ast.Call]:
    return inside(ast.Call, statement_at(site[0])) if site else []


def _built_at(
    scope: Scope, value: ast.expr | None, files: Iterable[str], place: int | None = None
) -> Frame | None:
    """Follow a name, or the result of a user's function, to the line that builds it."""
    if isinstance(value, ast.Name):
        for definition in definitions(scope).get(value.id, ())[:1]:
            inner = _built_at(scope, definition.value, files, definition.place)
            return inner or _in(scope, definition.value.lineno)
    elif isinstance(value, ast.Call) and place is not None:
        for function in functions(called(value), files)[:1]:
            parts = [part_of(each, place)[0] for each in returned(function)[:1]]
            return _built_at(function, parts[0], files) if parts and isinstance(parts[0], ast.Name) else None
    return None


def _in(scope: Scope, line: int) -> Frame:
    return Frame(scope.file, line, getattr(scope.node, "name", "<module>"))


def unfreezing_line(files: Iterable[str], names: Collection[str]) -> Frame | None:
    """Return the shortest statement that may set ``requires_grad`` to True and contains one of these names.

    The statement sets ``requires_grad``, or calls a function that sets it. One with the constant True is preferred.
    """
    files = tuple(files)
    found = [
        (not any(map(_is_true, values)), (node.end_lineno or 0) - node.lineno, Frame(file, node.lineno, ""))
        for file in files
        for node in nodes_of([file])
        if isinstance(node, (ast.Expr, ast.Assign, ast.For)) and (values := _made_trainable(node, files))
        if any(last_name(each) in names for each in ast.walk(node))
    ]
    return min(found, key=lambda each: each[:2])[2] if found else None


def _is_true(value: ast.expr) -> bool:
    return getattr(value, "value", None) is True


def _made_trainable(statement: ast.AST, files: tuple[str, ...]) -> list[ast.expr]:
    """Return what a statement, or a function that it calls, assigns to ``requires_grad``, except False."""
    found: list[ast.expr] = []
    for node in ast.walk(statement):
        value = requires_grad(node)
        given = [value] if value is not None else []
        if value is None and isinstance(node, ast.Call):
            sets = any(_made_trainable(scope.node, ()) for scope in functions(called(node), files))
            given = [*node.args, *(keyword.value for keyword in node.keywords)] if sets else []
        if not any(getattr(value, "value", None) is False for value in given):
            found += given
    return found


def data_among(log: Log, ids: Ids) -> dict[int, Frame]:
    """Return tensors that hold data but are changed by optimizer steps, with the lines that create the tensors.

    Such a tensor is converted from other values, no module holds it, and a loss has one item for each of its rows.
    """
    several = [log.parameters[number] for number in ids if number in log.parameters]
    plain = [
        each
        for each in several
        if each.name and each.shape and not (each.registered or each.root or each.made or each.still)
    ]
    calls = [event for event in log.events if plain and isinstance(event, Backward)]
    found = {}
    for each in plain:
        counts = {
            (*term.sizes[:1], term.items)
            for event in calls
            if each.id in event.reached
            for term in event.terms
        }
        line = None
        if each.shape[0] > 1 and each.shape[0] in {count for several in counts for count in several}:
            line = _converted(each.name, files_of({event.site for event in calls}))
        if line is not None:
            found[each.id] = line
    return found


def _converted(name: str, files: Iterable[str]) -> Frame | None:
    """Return the first line that converts values to the tensor of this name, if no line sets it in another way."""
    last = name.rpartition(".")[2]
    found: dict[str, list[tuple[str, ast.expr]]] = {}
    for scope in (scope for file in files for scope in scopes_of(file)):
        for key in (last, f".{last}"):
            values = [each.value for each in definitions(scope).get(key, ()) if each.whole]
            found.setdefault(key, []).extend((scope.file, value) for value in values)
    made = found.get(f".{last}") or found.get(last, [])  # an attribute may have the name of an argument
    for _, value in made:
        calls = [call for call in inside(ast.Call, value) if called(call) in _CONVERSIONS and call.args]
        reads = any(inside(ast.Name, call.args[0]) for call in calls)
        if not reads or _INITIAL.search(ast.unparse(value)):
            return None
    return Frame(made[0][0], made[0][1].lineno, "") if made else None
