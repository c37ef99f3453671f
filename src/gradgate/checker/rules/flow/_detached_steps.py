"""Finds recurrent states that each time step detaches, so that only the last step is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import inside, loops_around, statement_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Cut, Frame

_STEPS = 3  # detached steps before the first backward call that are needed


def detached_steps(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report a state that a loop detaches in each step, if a loss reaches the cell through one step only."""
    losses = run.numbered(Backward)
    cuts = [pair for pair in run.numbered(Cut) if pair[1].op in ("detach", "data") and pair[1].site]
    for site, several in grouped((event.site, (n, event)) for n, event in cuts).items():
        ids = union(event.parameters for _, event in several)
        first = next(((n, event) for n, event in losses if event.reached & ids and n > several[0][0]), None)
        if first is None or sum(n < first[0] for n, _ in several) < _STEPS or ids & first[1].reused:
            continue
        for at, state in ((frame, state) for frame in site for state in _states(frame)):
            yield rule.finding(
                at,
                f"`{state}` is detached in each step of this loop: the gradient of the loss at line "
                f"{first[1].site[0].line} reaches {run.names(ids & first[1].reached)} through the last step only.",
                why="The network learns nothing from what it read in earlier steps.",
                advice=f"Detach `{state}` once for each window of steps, after backward(), not in each step.",
                severity="warning",
                count=len(run.calls_at(first[1].site)),
                evidence={"parameters": len(ids)},
                about=ids,
            )
            break


def _states(frame: Frame) -> Iterator[str]:
    """Yield what a line detaches if the loop around it passes it to a call that returns its next value."""
    at, loops = statement_at(frame), loops_around(frame)
    for loop in loops[:1] if isinstance(at, ast.Assign) else ():
        if any(called(call) == "backward" for call in inside(ast.Call, loop)):
            return
        own = [node.value for node in inside(ast.Attribute, at) if node.attr in ("detach", "data")]
        detached = own or [each for call in inside(ast.Call, at) for each in call.args]  # h = repackage(h)
        # ``state[i]`` is another value in each step.
        for state in (ast.unparse(each) for each in detached if not isinstance(each, ast.Subscript)):
            for each in inside(ast.Assign, loop):
                calls = [call for call in inside(ast.Call, each.value) if called(call) != "detach"]
                given = {ast.unparse(node) for call in calls for part in call.args for node in ast.walk(part)}
                if state in given and state in map(ast.unparse, _targets(each)) and (own or each is not at):
                    yield state


def _targets(statement: ast.Assign) -> list[ast.expr]:
    """Return what a statement assigns to, without tuples around it."""
    found = list(statement.targets)
    for each in found:  # grows during the loop
        found += each.elts if isinstance(each, (ast.Tuple, ast.List)) else []
    return found
