"""Two optimizers step the same parameter with the same gradient.

## What it does
Looks for gradients that two optimizers use one after the other, and for a parameter that one optimizer lists
twice.

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
Two optimizers that each use the gradient of their own loss are not reported: InfoGAN is trained this way.

## Sources
docs.pytorch.org/docs/stable/optim.html, "Per-parameter options".
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._lives import unheld
from gradgate.checker.analysis._origins import list_line
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import ownership as texts
from gradgate.events import Ids, OptimizerMade


def _judge(run: Run) -> Iterator[Finding]:
    for event in run.of(OptimizerMade):
        if event.twice and run.stepping[event.optimizer]:
            yield RULE.say(
                list_line(event.site) or event.site,
                texts.LISTED_TWICE,
                fix=() if _left_out(run) else _listed_once,
                count=run.stepping[event.optimizer],
                about=event.twice | _left_out(run),
                optimizer=run.optimizer(event.optimizer),
                names=run.names(event.twice),
                them="it" if len(event.twice) == 1 else "them",
            )
    for (first, second), (ids, steps) in _shared(run).items():
        # If one optimizer holds all of the other's parameters, it holds too many.
        taking = first if run.held(first) > run.held(second) else second
        names = {number: run.optimizer(number) for number in (first, second)}
        if len(set(names.values())) == 1:  # the optimizers are in a list, or in different functions
            made = {number: run.made[number][0] for number in names}
            names = {n: f"{made[n].kind} of line {innermost(made[n].site).line}" for n in names}
        site = run.made[taking][0].site
        yield RULE.say(
            list_line(site) or site,
            texts.OF_TWO,
            count=len(steps),
            first=names[first],
            second=names[second],
            taking=names[taking],
            names=run.names(ids),
            them="it" if len(ids) == 1 else "them",
            steps=len(steps),
        )


def _left_out(run: Run) -> Ids:
    """Return the parameters in no optimizer's list, whose place the second mention may have taken."""
    return union(entry.ids for entry in unheld(run) if entry.why == "unlisted")


def _shared(run: Run) -> dict[tuple[int, int], tuple[Ids, set[int]]]:
    """Return, by pair of optimizers, the parameters that both updated with one gradient, and the later steps."""
    shared: dict[tuple[int, int], tuple[Ids, set[int]]] = defaultdict(lambda: (frozenset(), set()))
    for window in run.windows:
        for entry in window.fresh if not run.repeats_closure(window) else ():
            for number in entry.consumed:
                steps = run.stepped(number), run.stepped(window.step)
                moved = all(any(s.lr) and (not s.seen or s.moved & entry.atom) for s in steps)
                if number < window.step and steps[0].optimizer != steps[1].optimizer and moved:
                    pair = steps[0].optimizer, steps[1].optimizer
                    shared[pair] = shared[pair][0] | entry.atom, shared[pair][1] | {window.step}
    return {pair: (ids, steps) for pair, (ids, steps) in shared.items() if len(steps) > 1}


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
