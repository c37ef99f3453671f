"""Finds steps that use the previous step's gradients again, unchanged or with another network's added to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._queries import windows_of
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import inside, path_to, statement_at, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Delete, Fix, Insert, Unwrap
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Cleared, Frame, Gap, Written

_LEAST = 3  # steps


def used_again(run: Run, rule: Rule, *, why: str) -> Iterator[Finding]:
    """Report optimizers whose steps often use the previous step's gradients again."""
    reached = union(event.reached for event in run.of(Backward))
    for optimizer in run.stepping:
        windows = windows_of(run, optimizer)
        again = [
            (each, line)
            for before, each in pairwise(windows)
            if (line := _again(run, before, each)) is not None
        ]
        if len(again) < _LEAST or 2 * len(again) < run.watched(optimizer):
            continue
        used = union(run.stepped(each.step).used for each, _ in again)
        adding = {line for _, line in again if line}
        name, step = run.optimizer(optimizer), run.events[again[0][0].step].site
        given = not used & reached  # the gradients are another network's
        calls = sum(again[0][0].step < number < again[-1][0].step for number, _ in run.numbered(Backward))
        times = f"{len(again)} of {run.steps_of(optimizer)} use"
        facts = {"count": len(again), "evidence": {"steps": len(again), "backwards": calls}, "about": used}
        files = files_of([step, *(event.site for event in run.of(Backward))])
        if (
            adding
            and given
            and not any(isinstance(node.value, ast.Constant) for _, node in _assignments(files))
        ):
            (first, *_) = sorted(adding)
            yield rule.finding(
                step,
                f"{times} gradients of {run.names(used)} that earlier steps already used: line {first.line} adds "
                "new gradients to them, and nothing clears them.",
                why=why,
                advice=f"Call {name}.zero_grad() after each step.",
                fix=partial(_cleared, adding=first),
                **facts,  # type: ignore[arg-type]
            )
        elif not adding and (given or _trained_by_others(run, again[0][0].step, again[-1][0].step)):
            at = _assigned(files) if given else None
            yield rule.finding(
                at or step,
                f"{times} exactly the gradients of {run.names(used)} that the step before used, although {calls} "
                "backward calls came in between.",
                why="A gradient belongs to the weights and the batch that it was computed from: these steps follow "
                "old ones.",
                advice="Assign the new gradients before each step, even if the old ones are still there."
                if at
                else f"Call {name}.zero_grad() after its step, so that each step follows new gradients.",
                fix=_without_condition if at else _cleared,
                **facts,  # type: ignore[arg-type]
            )


def _again(run: Run, before: StepWindow, window: StepWindow) -> Frame | tuple[()] | None:
    """Return the line that adds to the previous step's gradients; () if these are unchanged, None if replaced."""
    previous, step = run.stepped(before.step), run.stepped(window.step)
    between = run.events[before.step + 1 : window.step]
    calls = [event for event in between if isinstance(event, Backward) and event.reached]
    cleared = any(isinstance(event, Cleared) and event.full & step.used for event in between)
    broken = cleared or any(isinstance(event, Gap) for event in between) or not (previous.seen and step.seen)
    if window.fresh or not window.stale or not calls or broken or not step.moved & step.used:
        return None
    written = [event for event in between if isinstance(event, Written) and event.target == "gradient"]
    written = [event for event in written if event.parameters & step.used]
    if not written:
        norms = [{number: norm for number, norm, *_ in each.norms if norm} for each in (previous, step)]
        return () if norms[0] == norms[1] and norms[0] else None
    lines = {innermost(event.site) for event in written}
    return min(lines) if all(map(_adds, lines)) else None


def _trained_by_others(run: Run, first: int, last: int) -> bool:
    """Return whether all backward calls between two steps train parameters of optimizers: no model was replaced."""
    calls = (event for number, event in run.numbered(Backward) if first < number < last)
    return all(event.reached <= run.owned for event in calls)


def _adds(line: Frame) -> bool:
    """Return whether a line adds something else to a gradient: ``p.grad += g``, ``p.grad.add_(q.grad)``."""
    node = statement_at(line)
    target: ast.AST | None = None
    added: list[ast.expr] = []
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        target, added = node.target, [node.value]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and method(node) == "add_":
        target, added = getattr(node.value.func, "value", None), node.value.args
    own = {name.id for name in inside(ast.Name, target)}
    named = _is_gradient(target)
    return named and bool(own) and own.isdisjoint(name.id for name in inside(ast.Name, *added))


def _is_gradient(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr.lstrip("_") == "grad"


def _assignments(files: tuple[str, ...]) -> list[tuple[str, ast.Assign]]:
    """Return the assignments to ``.grad``, including those of None."""
    nodes = ((file, node) for file in files for node in inside(ast.Assign, tree_of(file)))
    return [(file, node) for file, node in nodes if _is_gradient(node.targets[0])]


def _assigned(files: tuple[str, ...]) -> Frame | None:
    """Return the only line that assigns a gradient, or the condition that skips it if an old gradient exists."""
    found = [(file, node) for file, node in _assignments(files) if not isinstance(node.value, ast.Constant)]
    if len(found) != 1:
        return None
    ((file, node),) = found
    at = Statement.at(Frame(file, node.lineno, ""))
    above = [each for each in at.block if each.lineno < node.lineno] if at is not None else []
    tests = [each for each in (*above, *path_to(file, node.lineno)) if isinstance(each, ast.If)]
    guards = [each for each in tests if any(map(_is_gradient, inside(ast.Attribute, each.test)))]
    return Frame(file, guards[-1].lineno if guards else node.lineno, "")


def _without_condition(at: Statement) -> Fix:
    """Drop a condition that skips the assignment of gradients."""
    if not isinstance(at.node, ast.If) or at.node.orelse:
        return ()
    leaves = isinstance(at.node.body[0], (ast.Return, ast.Continue))
    return (Unwrap(at.line), *((Delete(at.node.body[0].lineno),) if leaves else ()))


def _cleared(at: Statement, *, adding: Frame | None = None) -> Fix:
    """Clear after the step. Set gradients to None only if a condition assigns gradients where there are none."""
    guarded = adding is None or any(
        isinstance(node, ast.If) and "grad" in ast.unparse(node.test) for node in path_to(*adding[:2])
    )
    kept = "" if guarded else "set_to_none=False"
    return (
        (Insert(f"{owner(at.node)}.zero_grad({kept})", after=at.line),) if method(at.node) == "step" else ()
    )
