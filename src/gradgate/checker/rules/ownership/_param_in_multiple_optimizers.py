"""Two optimizers step the same parameter with the same gradient.

## What it does
Looks for gradients that two optimizers use one after the other, and for a parameter that one optimizer lists twice,
perhaps in place of another network that is in no optimizer. Also looks for an optimizer whose ``zero_grad`` is
called but whose ``step`` never is, while another optimizer updates these parameters along with others.

## Why is this bad?
The parameter is updated twice with one gradient, at two learning rates. The running averages of each optimizer miss
the other's steps.

## Example
    opt_actor = Adam([*trunk.parameters(), *actor.parameters()])
    opt_critic = Adam([*trunk.parameters(), *critic.parameters()])
    (actor_loss + critic_loss).backward()
    opt_actor.step()
    opt_critic.step()                    # updates the trunk a second time

## Use instead
    optimizer = Adam([*trunk.parameters(), *actor.parameters(), *critic.parameters()])

or pass the trunk to only one of the two.

## Known limits
Two optimizers that each use the gradient of their own loss are not reported: InfoGAN is trained this way. An
optimizer that never steps is not found if only a loop variable clears it: ``each.zero_grad()``.

## Sources
docs.pytorch.org/docs/stable/optim.html, "Per-parameter options".
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._left_out import left_out, optimizer_beside
from gradgate.checker.analysis._optimizer_names import as_written
from gradgate.checker.analysis._origins import list_line
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import text_of
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._in_no_optimizer import whole_module
from gradgate.checker.rules.stepping._idle_calls import calls_step
from gradgate.events import Cleared, Ids, OptimizerMade, ScalerUsed, SchedulerMade, Stepped

_LEAST = 3  # calls of zero_grad() and steps of the other optimizer


def _judge(run: Run) -> Iterator[Finding]:
    for event in run.of(OptimizerMade):
        if event.twice and run.stepping[event.optimizer]:
            yield _listed_twice(run, event)
    for (first, second), (ids, steps) in _shared(run).items():
        yield _of_two(run, first, second, ids, steps)
    for idle in run.made.keys() - run.stepping.keys() if run.ended == "finished" else ():
        yield from filter(None, [_never_stepped(run, idle)])


def _never_stepped(run: Run, idle: int) -> Finding | None:
    """Report an optimizer that only clears gradients, if a larger optimizer updates its parameters."""
    held, name = run.held(idle), run.optimizer(idle)
    steps = {other: count for other, count in run.stepping.items() if held and held < run.held(other)}
    sites = [event.site for event in run.of(Cleared) if event.site and event.parameters == held]
    clearing = [site for site in sites if f"{name}.zero_grad" in text_of(site[0])]
    # A scheduler's optimizer, and one whose steps a scaler skips, are judged elsewhere.
    others = any(event.op == "step" for event in run.of(ScalerUsed))
    others |= any(event.optimizer == idle for event in run.of(SchedulerMade))
    ran = {frame[:2] for event in run.of(Stepped) for frame in event.site}
    if others or min(len(clearing), max(steps.values(), default=0)) < _LEAST:
        return None
    if any(calls_step(file, name, ran) for file in run.files):
        return None
    taking = max(steps, key=steps.__getitem__)
    site = run.made[taking][0].site
    other, name = (as_written(run.optimizer(each), clearing[-1]) for each in (taking, idle))
    return RULE.finding(
        list_line(site) or site,
        f"{other} and {name} both hold {run.names(held)}, but {name}.step() is never called: {other} updates them "
        f"in {steps[taking]} steps.",
        why=f"The learning rate and other settings of {name} have no effect.",
        advice=f"Remove the parameters from {other}, and call {name}.step() after backward(). If {other} should "
        f"update them, remove {name}.",
        severity="warning",
        count=steps[taking],
        evidence={"parameters": len(held), "steps": steps[taking]},
    )


def _listed_twice(run: Run, event: OptimizerMade) -> Finding:
    """Report parameters that an optimizer lists twice, perhaps in place of another module's parameters."""
    them, missing = "it" if len(event.twice) == 1 else "them", _left_out_for(run, event)
    twice, other = whole_module(run, event.twice), whole_module(run, missing)
    name = run.optimizer(event.optimizer)
    message = f"{name} lists {run.names(event.twice)} twice, so each step updates {them} twice"
    advice = "List each parameter once: dict.fromkeys(parameters) drops duplicates."
    if missing:
        message += f". No optimizer holds {other or run.names(missing)}"
        advice = (
            f"Pass {other}.parameters() instead of the second {twice}.parameters()."
            if twice and other
            else f"List each parameter once, and add {f'{other}.parameters()' if other else run.names(missing)}."
        )
    return RULE.finding(
        list_line(event.site) or event.site,
        f"{message}.",
        why="Each update has twice the learning rate, and the running averages are updated twice.",
        advice=advice,
        fix=() if missing else _listed_once,
        count=run.stepping[event.optimizer],
        evidence={"parameters": len(event.twice)},
        about=event.twice | missing,
    )


def _left_out_for(run: Run, event: OptimizerMade) -> Ids:
    """Return parameters that no optimizer has, and that this one may be meant to have."""
    return frozenset[int]().union(
        *(
            left.ids
            for left in left_out(run)
            if (left.forgotten or not left.fixed)
            and left.listed
            and optimizer_beside(run, left) == event.optimizer
        )
    )


def _shared(run: Run) -> dict[tuple[int, int], tuple[Ids, set[int]]]:
    """Return, by pair of optimizers, the parameters that both updated with one gradient, and the later steps."""
    found: dict[tuple[int, int], tuple[Ids, set[int]]] = defaultdict(lambda: (frozenset(), set()))
    for window in run.windows:
        for contribution in window.fresh if not run.repeats_closure(window) else ():
            for number in contribution.consumed:
                pair = run.stepped(number).optimizer, window.optimizer
                if (
                    number < window.step
                    and pair[0] != pair[1]
                    and _moves(run, window, number, contribution.atom)
                ):
                    ids, steps = found[pair]
                    found[pair] = (ids | contribution.atom, steps | {window.step})
    return {pair: (ids, steps) for pair, (ids, steps) in found.items() if len(steps) > 1}


def _moves(run: Run, window: StepWindow, number: int, ids: Ids) -> bool:
    """Return whether both steps changed the parameters, or whether this wasn't recorded."""
    both = (run.stepped(window.step), run.stepped(number))
    return all(any(event.lr) and (not event.seen or event.moved & ids) for event in both)


def _of_two(run: Run, first: int, second: int, ids: Ids, steps: set[int]) -> Finding:
    # If one optimizer holds all of the other's parameters, it holds too many.
    taking = first if run.held(first) > run.held(second) else second
    site = run.made[taking][0].site
    names = {each: run.optimizer(each) for each in (first, second)}
    if len(set(names.values())) == 1:  # the optimizers are in a list, or in different functions
        names = {
            each: f"{run.made[each][0].kind} of line {innermost(run.made[each][0].site).line}"
            for each in names
        }
    them = "it" if len(ids) == 1 else "them"
    return RULE.finding(
        list_line(site) or site,
        f"{names[first]} and {names[second]} both update {run.names(ids)} with the same gradient, "
        f"{len(steps)} times.",
        why="One gradient updates the parameters twice, and each optimizer's running averages miss the other's "
        "steps.",
        advice=f"Pass {them} to only one optimizer: remove {them} from {names[taking]}.",
        count=len(steps),
        evidence={"parameters": len(ids), "steps": len(steps)},
    )


def _listed_once(at: Statement) -> Fix:
    """Drop duplicates from the list, if it holds parameters rather than groups."""
    value = at.value if isinstance(at.node, ast.Assign) else None
    if isinstance(value, ast.Call) and re.match(r"[A-Z]", method(at.node)):
        value = value.args[0] if value.args and isinstance(value.args[0], (ast.Call, ast.BinOp)) else None
    if value is None or any(isinstance(node, (ast.Dict, ast.keyword)) for node in ast.walk(value)):
        return ()
    text = ast.unparse(value)
    return (Replace(at.line, text, f"list(dict.fromkeys({text}))"),)


RULE = Rule("GG503", "param-in-multiple-optimizers", "error", __doc__ or "", _judge)
