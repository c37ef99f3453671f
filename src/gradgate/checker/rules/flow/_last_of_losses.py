"""Finds losses that a loop computes one after the other, each overwriting the loss before."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Definition,
    called,
    definitions,
    key_of,
    own_nodes,
    scope_at,
    scopes_of,
)
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import path_to, spans, statement_at
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.flow._last_pass import is_carried
from gradgate.events import Backward, Frame, Ids, Ran, Site

_TIMES = 2
_FIRST_CALLS = 3  # number of calls whose graphs are compared with earlier operations
_ENDS = (ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Continue)
_UPDATES = ("backward", "manual_backward", "grad", "step", "zero_grad")
_CHOICES = (ast.If, ast.While, ast.Try, ast.Match)
_AVERAGES = ("sum", "mean", "fmean", "average")


def last_of_losses(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report a loss that each iteration computes from its own data, if only the last one is back-propagated.

    The graph of the last loss shows that it includes no other iteration. The earlier losses count as forgotten in
    three cases: nothing reads them, they are added up only for display, or their iterations run layers that never
    get a gradient.
    """
    calls: dict[Site, list[Backward]] = defaultdict(list)
    for event in run.of(Backward):
        if event.site and event.reached & run.owned:
            calls[event.site].append(event)
    for site, events in calls.items():
        first = events[:_FIRST_CALLS]
        if len(events) < _TIMES or not all(event.left_out for event in first[1:]):
            continue
        for loop, name, definition in _losses_before(site[0]):
            uses = {where for _, where in first[0].uses}
            idle = _idle_layers(run, loop, site[0])
            if not _runs_in(loop, site[0], uses) or _keeps_state(files_of({site, *uses})):
                continue
            if not (idle or _is_unread(loop, name) or _is_added_up(loop, name, site[0])):
                continue
            yield rule.finding(
                Frame(site[0].file, definition.value.lineno, site[0].function),
                f"Each iteration of the loop at line {loop.lineno} overwrites `{name}`, and line "
                f"{site[0].line} back-propagates only the loss of the last iteration"
                + (f": no gradient reached {run.names(idle)}." if idle else "."),
                why="The losses of the other iterations are computed, but training does not minimize them.",
                advice=f"Add up the losses: set `{name} = 0` before the loop, and write `{name} += ...` in the "
                "loop.",
                count=len(events),
                evidence={"left_out_nodes": max(event.left_out for event in first)},
                about=idle,
            )
            break


def _losses_before(frame: Frame) -> Iterator[tuple[ast.For, str, Definition]]:
    """Yield each loop before a backward call that computes the call's loss from each iteration's own data."""
    statement, scope = statement_at(frame), scope_at(frame)
    if statement is None or scope is None:
        return
    made = definitions(scope)
    read = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for loop in own_nodes(scope.node):
        if (
            not isinstance(loop, ast.For)
            or loop.orelse
            or spans(loop, frame.line)
            or loop.lineno > frame.line
        ):
            continue
        inside = [node for part in loop.body for node in ast.walk(part)]
        ends = any(isinstance(node, _ENDS) for node in inside)
        if ends or any(isinstance(node, ast.Call) and called(node) in _UPDATES for node in inside):
            continue
        for name in sorted(read):
            several = made.get(name, ())
            if len(several) != 1 or several[0].statement not in inside or not several[0].whole:
                continue
            path = path_to(frame.file, several[0].value.lineno)
            if any(isinstance(node, _CHOICES) and node in inside for node in path):
                continue
            if _depends(several[0].value, loop, inside, made) and not is_carried(inside, made):
                yield loop, name, several[0]


def _depends(
    value: ast.AST, loop: ast.For, inside: Sequence[ast.AST], made: dict[str, tuple[Definition, ...]]
) -> bool:
    """Return whether an expression depends on the variables of a loop."""
    targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)} - {"_"}
    todo, seen = [value], set[str]()
    for part in todo:  # grows during the loop
        names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)} - seen
        if names & targets:
            return True
        seen |= names
        todo += [each.value for name in names for each in made.get(name, ()) if each.statement in inside]
    return False


def _runs_in(loop: ast.For, beside: Frame, sites: Iterable[Site]) -> bool:
    """Return whether a loop's body contains one of these sites. ``beside`` is a line of the loop's function."""
    frames = (frame for site in sites for frame in site)
    lines = [frame.line for frame in frames if frame[::2] == beside[::2]]
    return any(spans(part, line) for part in loop.body for line in lines)


def _idle_layers(run: Run, loop: ast.For, beside: Frame) -> Ids:
    """Return the parameters of layers that a loop runs but no gradient ever reaches."""
    ran = [event for event in run.of(Ran) if event.recording and _runs_in(loop, beside, [event.site])]
    parameters = frozenset[int]().union(*(event.parameters for event in ran))
    return frozenset(
        number for number in parameters & run.owned - run.reached if run.parameters[number].trainable
    )


def _keeps_state(files: Iterable[str]) -> bool:
    """Return whether a module's forward sets an attribute, so that a later loss may include earlier iterations."""
    return any(
        key.startswith(".")
        for file in files
        for scope in scopes_of(file)
        if getattr(scope.node, "name", "") in ("forward", "__call__", "step")
        for key, several in definitions(scope).items()
        for each in several
        if not isinstance(each.statement, ast.Expr)
    )


def _is_unread(loop: ast.For, name: str) -> bool:
    """Return whether a loop never reads a name that it sets."""
    names = (node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name))
    return not any(node.id == name and isinstance(node.ctx, ast.Load) for node in names)


def _is_added_up(loop: ast.For, name: str, beside: Frame) -> bool:
    """Return whether a loop adds up the numbers of a loss, or collects them in a list that is averaged later."""
    lists: set[str] = set()
    for node in (each for part in loop.body for each in ast.walk(part)):
        value = node.value if isinstance(node, (ast.AugAssign, ast.Expr)) else None
        if value is None or not any(
            isinstance(each, ast.Name) and each.id == name for each in ast.walk(value)
        ):
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            return True
        if isinstance(value, ast.Call) and called(value) == "append":
            lists.add(key_of(getattr(value.func, "value", value)))
    scope = scope_at(beside)
    calls = (
        (node for node in own_nodes(scope.node) if isinstance(node, ast.Call)) if scope is not None else ()
    )
    given = {key_of(each) for call in calls if called(call) in _AVERAGES for each in call.args}
    return bool(lists & given - {""})
