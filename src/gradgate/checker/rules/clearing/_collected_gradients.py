"""Finds loops that copy the gradient of each loss, where each copy includes the gradients of all earlier losses."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    called,
    functions,
    is_function,
    key_of,
    own_nodes,
    scope_at,
    statements_at,
)
from gradgate.checker.analysis._slices import Slice, files_of
from gradgate.checker.analysis._source import function_at, loops_around, nodes_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Cleared, Event, Frame, Ids, Site, Stepped, Written

_TIMES = 2
_NEW_VALUES = ("assigned", "copy_", "data", "set_")
_NUMBERS = ("norm", "item", "vector_norm", "float")
_DIFFERENCES = ("pairwise", "diff", "sub", "sub_")


def collected_gradients(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report losses whose gradients are copied one by one without clearing, and combined into a new gradient.

    The rule reads in the source that the values written to ``.grad`` were computed from the copies. The difference
    of two consecutive copies is the gradient of a single loss, so a loop that takes such differences is not
    reported.
    """
    found: dict[Site, list[tuple[int, Ids]]] = defaultdict(list)
    for site, number, ids in _rewritten(run):
        found[site].append((number, ids))
    files = files_of({event.site for event in run.of(Backward, Stepped)})
    for site, times in found.items():
        if len(times) < _TIMES or not _are_combined(site, files):
            continue
        most = max(number for number, _ in times)
        shared = frozenset[int]().union(*(ids for _, ids in times))
        yield rule.finding(
            site,
            f"The gradients of {most} losses are copied one after the other, and nothing clears "
            f"{run.names(shared)} in between: each copy includes the gradients of all earlier losses.",
            why="The loop combines the copies as if each were the gradient of one loss.",
            advice="Clear the gradients before each of these backward calls, or use torch.autograd.grad.",
            count=len(times),
            evidence={"losses": most, "parameters": len(shared)},
            about=shared,
        )


def _rewritten(run: Run) -> Iterator[tuple[Site, int, Ids]]:
    """Yield each line whose backward calls added up gradients without clearing, before other values replaced them.

    Each line comes with the number of calls and the parameters that several of the calls reached.
    """
    calls: list[Backward] = []
    standing, shared, closed = frozenset[int](), frozenset[int](), False
    for event in run.of(Backward, Cleared, Written, Stepped):
        if isinstance(event, Backward):
            if closed or not calls or calls[-1].site != event.site:
                calls, standing, shared, closed = [], frozenset(), frozenset(), False
            calls.append(event)
            shared |= event.reached & standing
            standing |= event.reached
        elif isinstance(event, Cleared):
            standing -= event.full
            closed = bool(shared)  # later backward calls belong to another round
        else:
            if replaces_gradients(event) and event.parameters & shared:
                yield calls[-1].site, len(calls), shared
            calls, shared = [], frozenset()


def replaces_gradients(event: Event) -> bool:
    """Return whether an event writes new values to gradients: ``p.grad = g``, ``p.grad.copy_(g)``."""
    return isinstance(event, Written) and event.target == "gradient" and event.op in _NEW_VALUES


def _are_combined(site: Site, files: tuple[str, ...]) -> bool:
    """Return whether all new gradients are computed from copies made in the loop or function of this line."""
    names, copies = _copies(site, files)
    if not copies or _takes_differences(names, site, files):
        return False

    def ends(file: str, node: ast.AST) -> Frame | None:
        return Frame(file, getattr(node, "lineno", 0), "") if node in copies else None

    written = [Frame(file, line, "") for file in files for line in _lines_of_new_gradients(file)]
    behind = [
        Slice([(scope, each) for each in statements_at(frame)], files, ends)
        for frame in written
        if (scope := scope_at(frame)) is not None
    ]
    if not behind or not all(each.ended for each in behind):
        return False
    return not any(_is_difference(node) for each in behind for _, node in each.nodes)


def _is_difference(node: ast.AST) -> bool:
    """Return whether an expression subtracts one value from another: ``b - a``, but not ``g - s * other``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    return all(isinstance(side, (ast.Name, ast.Attribute, ast.Subscript)) for side in (node.left, node.right))


def _lines_of_new_gradients(file: str) -> Iterator[int]:
    """Yield the lines that write a new value to ``.grad``: ``p.grad = g``, ``p.grad.copy_(g)``."""
    for node in nodes_of([file]):
        if isinstance(node, ast.Assign) and getattr(node.value, "value", node) is not None:
            targets = node.targets
        elif isinstance(node, ast.Call) and called(node) == "copy_" and isinstance(node.func, ast.Attribute):
            targets = [node.func.value]
        else:
            continue
        if any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets):
            yield node.lineno


def _copies(site: Site, files: tuple[str, ...]) -> tuple[set[str], set[ast.AST]]:
    """Return the names of gradient copies made after a backward call, and the expressions that copy."""
    frame = site[0]
    loops = loops_around(frame)
    names, copies = set[str](), set[ast.AST]()
    for node in _always(loops[0].body) if loops else ():
        held: ast.AST | None = None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) == "append":
            held = node.value.func.value if isinstance(node.value.func, ast.Attribute) else None
            value: ast.expr | None = node.value.args[0] if node.value.args else None
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            held, value = node.targets[0].value, node.value
        if held is not None and value is not None and _reads_gradients(value, files):
            names.add(key_of(held))
            copies.add(value)
    function = function_at(frame)
    if not loops and function is not None and is_function(function):
        returns = (node.value for node in own_nodes(function) if isinstance(node, ast.Return))
        copies |= {value for value in returns if value is not None and _reads_gradients(value, files)}
        lists = [node for node in nodes_of(files) if copies and isinstance(node, ast.ListComp)]
        calls = [(node, node.elt) for node in lists if isinstance(node.elt, ast.Call)]
        copies |= {node for node, call in calls if called(call) == function.name}
    return names, copies


def _always(block: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run in every iteration of a loop."""
    for node in block:
        yield node
        if isinstance(node, (ast.For, ast.With)):
            yield from _always(node.body)


def _reads_gradients(value: ast.expr, files: tuple[str, ...]) -> bool:
    """Return whether an expression reads ``.grad`` as tensors, directly or in a function that it calls."""
    nodes = list(ast.walk(value))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(called(call) in _NUMBERS for call in calls):
        return False
    inner = [
        node for call in calls for scope in functions(called(call), files) for node in own_nodes(scope.node)
    ]
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and ast.unparse(node.value) not in _MODULES
        for node in (*nodes, *inner)
    )


_MODULES = ("torch.autograd", "autograd", "torch.func")


def _takes_differences(names: set[str], site: Site, files: tuple[str, ...]) -> bool:
    """Return whether the source compares consecutive copies, or uses only some of the copies."""
    loops, scope = loops_around(site[0]), scope_at(site[0])
    beside = list(ast.walk(loops[0])) if loops else list(own_nodes(scope.node)) if scope is not None else []
    if any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _is_of_tensors(node)
        for node in beside
    ):
        return True
    for node in nodes_of(files):
        if isinstance(node, ast.Call) and called(node) in _DIFFERENCES:
            return True
        if isinstance(node, ast.Subscript) and key_of(node.value) in names:
            index = node.slice
            if not isinstance(index, (ast.Name, ast.Constant, ast.Tuple)):
                return True  # copies[i - 1], copies[1:], copies[-1]
    return False


def _is_of_tensors(difference: ast.BinOp) -> bool:
    """Return whether both sides of a difference may be tensors, rather than numbers or lengths."""
    sides = (difference.left, difference.right)
    return not any(isinstance(side, ast.Constant) or "len(" in ast.unparse(side) for side in sides)
