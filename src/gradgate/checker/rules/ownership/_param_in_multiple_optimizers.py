"""Two optimizers step the same parameter with the same gradient.

## What it does
Looks for gradients that two optimizers use one after the other, and for a parameter that stands in the list of one
optimizer twice.

## Why is this bad?
The parameter moves twice for one gradient, at two rates, and each optimizer's averages miss what the other one did.

## Example
    opt_actor = Adam([*trunk.parameters(), *actor.parameters()])
    opt_critic = Adam([*trunk.parameters(), *critic.parameters()])
    (actor_loss + critic_loss).backward()
    opt_actor.step()
    opt_critic.step()                    # steps the trunk once more

## Use instead
    optimizer = Adam([*trunk.parameters(), *actor.parameters(), *critic.parameters()])

or leave the trunk to one of the two.

## Known limits
Where each optimizer uses the gradient of a loss of its own, nothing is said: InfoGAN is trained so.

## Sources
docs.pytorch.org/docs/stable/optim.html, "Per-parameter options".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._history import Window
from gradgate.checker.analysis._origins import list_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Ids, OptimizerMade

_WHY = "It moves twice for one gradient, and neither optimizer's averages tell how far it went."


def _judge(run: Run) -> Iterator[Finding]:
    for event in run.of(OptimizerMade):
        if event.twice and run.stepping[event.optimizer]:
            yield RULE.finding(
                list_line(event.site) or event.site,
                f"{run.names(event.twice)} stand{'s' if len(event.twice) == 1 else ''} twice in the list of "
                f"{run.optimizer(event.optimizer)}, and {'is' if len(event.twice) == 1 else 'are'} stepped twice "
                "each time.",
                why="It moves by twice its rate, and its averages are updated twice.",
                advice="List each parameter once: dict.fromkeys(parameters) drops what is named twice.",
                count=run.stepping[event.optimizer],
                evidence={"parameters": len(event.twice)},
            )
    shared = _shared(run)
    for (one, other), (ids, steps) in shared.items():
        yield _of_two(run, one, other, ids, steps)


def _shared(run: Run) -> dict[tuple[int, int], tuple[Ids, set[int]]]:
    """Return by pairs of optimizers what both stepped with one gradient, and the second ones' steps."""
    found: dict[tuple[int, int], tuple[Ids, set[int]]] = defaultdict(lambda: (frozenset(), set()))
    for window in run.windows:
        if run.asks_again(window):
            continue
        for one in window.fresh:
            for number in one.consumed:
                before = run.stepped(number)
                if (
                    number < window.step
                    and before.optimizer != window.optimizer
                    and _moves(run, window, number, one.atom)
                ):
                    ids, steps = found[before.optimizer, window.optimizer]
                    found[before.optimizer, window.optimizer] = (ids | one.atom, steps | {window.step})
    return {pair: (ids, steps) for pair, (ids, steps) in found.items() if len(steps) > 1}


def _moves(run: Run, window: Window, number: int, ids: Ids) -> bool:
    """Say whether both steps moved the parameters, as far as that was looked at."""
    both = (run.stepped(window.step), run.stepped(number))
    return all(any(event.lr) and (not event.seen or event.moved & ids) for event in both)


def _of_two(run: Run, one: int, other: int, ids: Ids, steps: set[int]) -> Finding:
    first, second = (_held(run, number) for number in (one, other))
    taking = one if first > second else other  # the one that took too much, where one holds all of the other
    site = run.made[taking][0].site
    return RULE.finding(
        list_line(site) or site,
        f"{run.optimizer(one)} and {run.optimizer(other)} both step {run.names(ids)} with the same gradient, "
        f"{len(steps)} times.",
        why=_WHY,
        advice=f"Leave {'it' if len(ids) == 1 else 'them'} to one of the two: take "
        f"{'it' if len(ids) == 1 else 'them'} out of the list of {run.optimizer(taking)}.",
        count=len(steps),
        evidence={"parameters": len(ids), "steps": len(steps)},
    )


def _held(run: Run, number: int) -> Ids:
    return frozenset().union(*(group.parameters for event in run.made[number] for group in event.groups))


RULE = Rule("GG503", "param-in-multiple-optimizers", "error", __doc__ or "", _judge)
