"""Finds the line to change: it computes a learning rate or builds a list of parameters."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from gradgate.checker.analysis._scopes import (
    Scope,
    argument,
    called,
    definitions,
    functions,
    is_function,
    key_of,
    last_name,
    own_nodes,
    parameters_of,
    part_of,
    returned,
    scope_at,
)
from gradgate.checker.analysis._source import loops_around, nodes_of, path_to, statement_at
from gradgate.events import Frame, Site


def computed_rate(site: Site) -> Frame | None:
    """Return the line that computes an optimizer's learning rate, if that is not the optimizer's own line."""
    statement, scope = statement_at(site[0]), scope_at(site[0])
    if statement is None or scope is None:
        return None
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    rates = [rate for call in calls if (rate := argument(call, 1, "lr")) is not None]
    values = [each.value for rate in rates for each in definitions(scope).get(key_of(rate), ())]
    computed = (value for value in values if isinstance(value, (ast.BinOp, ast.Call)))
    return next((site[0]._replace(line=value.lineno) for value in computed), None)


def rate_set_by_hand(step: Site) -> Frame | None:
    """Return the line that computes, or rounds, the learning rate that a script writes into groups."""
    for file in dict.fromkeys(frame.file for frame in step):
        assigned = [node for node in nodes_of([file]) if isinstance(node, ast.Assign)]
        slices = [(node, getattr(node.targets[0], "slice", None)) for node in assigned]
        written = [node for node, index in slices if getattr(index, "value", None) == "lr"]
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
    statement = statement_at(frame)
    return statement is not None and any(isinstance(node, ast.FloorDiv) for node in ast.walk(statement))


def _rounding(file: str, parts: list[ast.AST]) -> int:
    """Return the line of a ``//`` in these expressions or in the definitions of their names, or 0."""
    names = {last_name(node) for part in parts for node in ast.walk(part)}
    for node in nodes_of([file]):
        if isinstance(node, ast.Assign) and names & {getattr(part, "id", "") for part in node.targets}:
            parts = [*parts, node.value]
        elif isinstance(node, ast.FunctionDef) and node.name in names:
            parts = [*parts, *node.body]
    divisions = [node for part in parts for node in ast.walk(part) if isinstance(node, ast.BinOp)]
    return next((node.lineno for node in divisions if isinstance(node.op, ast.FloorDiv)), 0)


def length_line(site: Site) -> tuple[Frame | None, bool]:
    """Return the line that computes a schedule's length from a loader's length, and whether the line divides.

    The line contains ``len(...)``. It is a frame's own statement or defines a name in that statement.
    """
    for frame in site:
        scope, statement = scope_at(frame), statement_at(frame)
        if scope is None or statement is None:
            continue
        todo: list[ast.stmt | ast.expr] = [statement]
        seen: set[str] = set()
        while todo:
            node = todo.pop(0)
            inner = list(ast.walk(node))
            if any(isinstance(call, ast.Call) and called(call) == "len" for call in inner):
                divided = any(isinstance(each, (ast.Div, ast.FloorDiv)) for each in inner)
                return frame._replace(line=node.lineno), divided
            names = {key_of(each) for each in inner if isinstance(each, (ast.Name, ast.Attribute))} - seen
            seen |= names
            values = [each.value for name in sorted(names) for each in definitions(scope).get(name, ())]
            # An object of a class (an optimizer, a model) is not a number.
            todo += [
                value for value in values if not (isinstance(value, ast.Call) and called(value)[:1].isupper())
            ]
    return None, False


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
    path = path_to(site[0].file, site[0].line) if site else ()
    if scope is None or len(path) < 2:
        return None
    calls = [node for node in ast.walk(path[-1]) if isinstance(node, ast.Call) and node.args]
    given = [call.args[0] for call in calls if called(call)[:1].isupper()]
    for value in reversed(given):
        if isinstance(value, (ast.Name, ast.Call)):
            found = _built_at(scope, value, files or (scope.file,))
            if found is not None:
                return found
    return None


def unlisted_group(site: Site) -> Frame | None:
    """Return the line of the last ``group = {"params": ...}`` of a function, if nothing uses the whole group."""
    scope = scope_at(site[0]) if site else None
    nodes = own_nodes(scope.node) if scope is not None else ()
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    made = [node for node in assigned if "'params': " in ast.unparse(node.value)]
    if not made or scope is None:
        return None
    line, name = made[-1].lineno, key_of(made[-1].targets[0])
    parts = {node.value for node in nodes if isinstance(node, (ast.Attribute, ast.Subscript))}
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id == name and node.lineno > line]
    whole = [node for node in names if node not in parts]
    return None if whole else Frame(scope.file, line, getattr(scope.node, "name", "<module>"))


def _built_at(scope: Scope, value: ast.expr, files: Iterable[str], place: int | None = None) -> Frame | None:
    """Follow a name, or the result of a user's function, to the line that builds it."""
    if isinstance(value, ast.Name):
        for definition in definitions(scope).get(value.id, ())[:1]:
            inner = _built_at(scope, definition.value, files, definition.place)
            return inner or Frame(
                scope.file, definition.value.lineno, getattr(scope.node, "name", "<module>")
            )
    elif isinstance(value, ast.Call):
        for inside in functions(called(value), files)[:1]:
            for part in returned(inside)[:1]:
                part = part if place is None else part_of(part, place)[0]
                if isinstance(part, ast.Name) and place is not None:
                    return _built_at(inside, part, files)
    return None


def comprehension_line(site: Site) -> Frame | None:
    """Return the last list comprehension with a condition over parameters, in a function that builds groups."""
    path = path_to(site[0].file, site[0].line) if site else ()
    calls = [node for node in ast.walk(path[-1]) if isinstance(node, ast.Call)] if len(path) > 1 else []
    for scope in (scope for call in calls for scope in functions(called(call), (site[0].file,))):
        lists = [node for node in own_nodes(scope.node) if isinstance(node, ast.ListComp)]
        chosen = [node for node in lists if any(part.ifs for part in node.generators)]
        lines = [node.lineno for node in chosen if "parameters" in ast.unparse(node.generators[0].iter)]
        if lines:
            return Frame(scope.file, max(lines), getattr(scope.node, "name", ""))
    return None


def unfreezing_line(files: Iterable[str], names: Collection[str]) -> Frame | None:
    """Return the shortest statement that may set ``requires_grad`` to True and contains one of these names.

    The statement either sets ``requires_grad`` or passes True or a computed value to a function that sets it.
    """
    files = tuple(files)
    found = [
        (
            not constant,
            argument_only,
            (node.end_lineno or node.lineno) - node.lineno,
            Frame(file, node.lineno, ""),
        )
        for file in files
        for node in nodes_of([file])
        if isinstance(node, (ast.Expr, ast.Assign, ast.For)) and (values := _made_trainable(node, files))
        if any(getattr(each, "attr", getattr(each, "id", "")) in names for each in ast.walk(node))
        for constant in [any(getattr(value, "value", None) is True for value in values)]
        for argument_only in [all(_is_argument(value, Frame(file, node.lineno, "")) for value in values)]
    ]
    return min(found, key=lambda each: each[:3])[3] if found else None


def _is_argument(value: ast.expr, frame: Frame) -> bool:
    """Return whether a value is an argument of the function, or ``not`` an argument: the caller decides."""
    inner, scope = _without_not(value)[0], scope_at(frame)
    names = parameters_of(scope.node) if scope is not None and is_function(scope.node) else []
    return isinstance(inner, ast.Name) and inner.id in names


def _without_not(value: ast.expr) -> tuple[ast.expr, bool]:
    """Return the ``x`` of ``not x``, and whether there is a ``not``."""
    negated = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    return (value.operand, True) if negated and isinstance(value, ast.UnaryOp) else (value, False)


def _made_trainable(statement: ast.AST, files: tuple[str, ...]) -> list[ast.expr]:
    """Return the values other than False that a statement or its calls assign to ``requires_grad``."""
    given: list[ast.expr] = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and called(node) == "requires_grad_":
            given += [*node.args, *(keyword.value for keyword in node.keywords)] or [ast.Constant(True)]
        elif isinstance(node, ast.Call):
            for scope in functions(called(node), files):
                given += _passed_on(node, scope)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "") == "requires_grad":
            given.append(node.value)
    return [value for value in given if getattr(value, "value", None) is not False]


def _passed_on(call: ast.Call, scope: Scope) -> list[ast.expr]:
    """Return the arguments, with any ``not``, that a function assigns to ``requires_grad``."""
    if not is_function(scope.node):
        return []
    names = parameters_of(scope.node)
    inside = (value for node in scope.node.body for value in _made_trainable(node, ()))
    found: list[ast.expr] = []
    for value, negated in map(_without_not, inside):
        name = value.id if isinstance(value, ast.Name) else ""
        given = argument(call, names.index(name), name) if name in names else None
        if isinstance(given, ast.Constant) and negated:
            found.append(ast.Constant(not given.value))
        elif given is not None:
            found.append(ast.UnaryOp(ast.Not(), given) if negated else given)
    return found
