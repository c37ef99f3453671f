"""Where a rate is computed, or a list of parameters is built: the line to change."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from gradgate.checker.analysis._scopes import (
    Scope,
    argument,
    called,
    definitions,
    functions,
    key_of,
    own_nodes,
    part_of,
    returned,
    scope_at,
)
from gradgate.checker.analysis._source import path_to, statement_at, tree_of
from gradgate.events import Frame, Site


def computed_rate(site: Site) -> Frame | None:
    """Return where an optimizer's rate is computed, if that is another line."""
    statement, scope = statement_at(site[0]), scope_at(site[0])
    for call in ast.walk(statement) if statement is not None else ():
        rate = argument(call, 1, "lr") if isinstance(call, ast.Call) else None
        for definition in (
            definitions(scope).get(key_of(rate), ()) if rate is not None and scope is not None else ()
        ):
            if isinstance(definition.value, (ast.BinOp, ast.Call)):
                return Frame(site[0].file, definition.value.lineno, site[0].function)
    return None


def rate_set_by_hand(step: Site) -> Frame | None:
    """Return the line that computes the rate which the script writes into groups, where it rounds if it does."""
    for file in dict.fromkeys(frame.file for frame in step):
        tree = tree_of(file)
        written = [
            node
            for node in (ast.walk(tree) if tree is not None else ())
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
            if getattr(node.targets[0].slice, "value", None) == "lr"
        ]
        if written:
            found = _rounding(tree, [node.value for node in written])
            return Frame(file, found or written[-1].lineno, "")
    return None


def rounded_for(made: Site) -> Frame | None:
    """Return the line that rounds the factor of a schedule, if there is one."""
    statement = statement_at(made[0]) if made else None
    found = _rounding(tree_of(made[0].file), [statement]) if statement is not None else 0
    return Frame(made[0].file, found, "") if found else None


def rounds(frame: Frame) -> bool:
    """Say whether a statement divides without a rest."""
    statement = statement_at(frame)
    return statement is not None and any(isinstance(node, ast.FloorDiv) for node in ast.walk(statement))


def _rounding(tree: ast.AST | None, parts: list[ast.AST]) -> int:
    """Return the line of a // in expressions, or in what the names in them are assigned or defined to be; or 0."""
    names = {getattr(node, "attr", getattr(node, "id", "")) for part in parts for node in ast.walk(part)}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and names & {getattr(part, "id", "") for part in node.targets}:
            parts = [*parts, node.value]
        elif isinstance(node, ast.FunctionDef) and node.name in names:
            parts = [*parts, *node.body]
    divisions = [node for part in parts for node in ast.walk(part) if isinstance(node, ast.BinOp)]
    return next((node.lineno for node in divisions if isinstance(node.op, ast.FloorDiv)), 0)


def length_line(site: Site) -> tuple[Frame | None, bool]:
    """Return the line that computes a schedule's length from that of a loader, and whether it divides there.

    Looked for is ``len(...)`` in a frame's own statement, or in what a name of that statement is assigned.
    """
    for frame in site:
        scope, statement = scope_at(frame), statement_at(frame)
        todo: list[ast.stmt | ast.expr] = [statement] if scope is not None and statement is not None else []
        seen: set[str] = set()
        while todo:
            node = todo.pop(0)
            inner = list(ast.walk(node))
            if any(isinstance(call, ast.Call) and called(call) == "len" for call in inner):
                divided = any(isinstance(each, (ast.Div, ast.FloorDiv)) for each in inner)
                return frame._replace(line=node.lineno), divided
            for name in {
                key_of(each) for each in inner if isinstance(each, (ast.Name, ast.Attribute))
            } - seen:
                seen.add(name)
                assert scope is not None  # noqa: S101
                values = [each.value for each in definitions(scope).get(name, ())]
                todo += [value for value in values if not _is_made(value)]
    return None, False


def _is_made(value: ast.expr) -> bool:
    """Say whether a value is an object of a class: an optimizer, a model."""
    return isinstance(value, ast.Call) and called(value)[:1].isupper()


def list_line(site: Site, files: Iterable[str] = ()) -> Frame | None:
    """Return the line that builds the list for an optimizer, where the list has a name or a function."""
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


def _built_at(scope: Scope, value: ast.expr, files: Iterable[str], place: int | None = None) -> Frame | None:
    """Follow a name, or what a function of the user's returns, to where it is built."""
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
    """Return the last comprehension over parameters with a condition, in a function that builds groups."""
    path = path_to(site[0].file, site[0].line) if site else ()
    for call in ast.walk(path[-1]) if len(path) > 1 else ():
        if not isinstance(call, ast.Call):
            continue
        for scope in functions(called(call), (site[0].file,)):
            lines = [
                node.lineno
                for node in own_nodes(scope.node)
                if isinstance(node, ast.ListComp)
                and any(part.ifs for part in node.generators)
                and "parameters" in ast.unparse(node.generators[0].iter)
            ]
            if lines:
                return Frame(scope.file, max(lines), getattr(scope.node, "name", ""))
    return None


def unfreezing_line(files: Iterable[str], names: Collection[str]) -> Frame | None:
    """Return the shortest statement that sets ``requires_grad`` to True and has one of some names in it."""
    found = [
        ((node.end_lineno or node.lineno) - node.lineno, Frame(file, node.lineno, ""))
        for file in files
        for node in ast.walk(tree_of(file) or ast.Pass())
        if isinstance(node, (ast.Expr, ast.Assign, ast.For)) and _unfreezes(node)
        if any(getattr(each, "attr", getattr(each, "id", "")) in names for each in ast.walk(node))
    ]
    return min(found, key=lambda each: each[0])[1] if found else None


def _unfreezes(statement: ast.AST) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "requires_grad_":
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "") == "requires_grad":
            given = [node.value]
        else:
            continue
        if all(getattr(each, "value", None) is True for each in given):
            return True
    return False
