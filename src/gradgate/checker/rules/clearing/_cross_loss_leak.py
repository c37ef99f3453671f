"""A step uses the gradient of a loss that belongs to another optimizer.

## What it does
Looks for steps that use the gradients of two losses, one of which is a leftover. A gradient is a leftover if
another optimizer's step used it before the second loss was back-propagated, or if the two gradients point in
opposite directions. A discriminator or critic must also step before the loss that passes through it is
back-propagated. Also reports a probe whose loss trains the representation that the probe reads.

## Why is this bad?
In a GAN, the generator's loss rewards a discriminator that is wrong. If the discriminator's step uses this
gradient, the discriminator learns to be wrong. A probe whose input is not detached changes the representation that
the probe should measure.

## Example
    opt_d.step(); opt_d.zero_grad()
    g_loss = bce(D(G(z)), real); g_loss.backward()      # also fills D's gradients
    opt_g.step()
    ...
        d_loss.backward(); opt_d.step()                     # this step also uses the gradient of g_loss

## Use instead
    opt_d.zero_grad()                                   # before d_loss.backward(), not after the step
    d_loss.backward(); opt_d.step()

or use two ``gradgate.Accumulator`` objects: ``update.backward(loss)`` of each fills only the gradients of its own
parameters.

## Known limits
A module is a probe if its name says so. Two losses that are both back-propagated before either optimizer steps
are reported only if their gradients point in opposite directions, or if the other loss compares with no data:
``-q(state, policy(state)).mean()``. If the directions agree and the other loss comes first in the loop, the
leftover may be intended (BicycleGAN's latent loss). The finding is then a note, unless the step's own loss uses a
value detached from the other loss's network.

## Sources
docs/accumulation.md, "several losses".
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import next_use, text_of
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Fix, Move, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.clearing._late_losses import (
    FAR_APART,
    is_passed_on,
    late_losses,
    lines_of_own_losses,
    opposed,
    used_by_others,
    where_they_differ,
)
from gradgate.checker.rules.clearing._missing_zero_grad import repeats
from gradgate.events import Backward, Cleared, Cut, Frame, Ids, Site

_PROBE = re.compile(r"(^|[._])(linear_?)?prob(e|er|ing)([._\[]|$)|linear_eval", re.IGNORECASE)
_DETACHED = ("detach", "detach_", "data")
_WHY = "The step also minimizes another optimizer's loss. In adversarial training the two losses oppose each other."


def _judge(run: Run) -> Iterator[Finding]:
    probes = list(_probes(run))
    yield from (finding for _, finding in probes)
    yield from late_losses(run, RULE)
    leaks: dict[tuple[int, Site], list[tuple[StepWindow, Contribution]]] = defaultdict(list)
    own = {optimizer: lines_of_own_losses(run, optimizer) for optimizer in run.stepping}
    for window in run.windows:
        for contribution in _leaked(run, window, own):
            leaks[window.optimizer, run.events[contribution.backward].site].append((window, contribution))
    for (optimizer, source), found in leaks.items():
        if any(source == site for site, _ in probes):
            continue
        steps = {window.step for window, _ in found}
        if len(steps) < 2 or len(steps) * 4 < run.stepping[optimizer]:
            continue
        ids: Ids = frozenset().union(*(contribution.atom for _, contribution in found))
        against = [opposed(run, window, contribution) < -0.05 for window, contribution in found]
        last = run.events[found[0][0].micro[-1]].site
        theirs, mine = where_they_differ(source, last)
        where, before = _line(run, optimizer, ids, source, found[-1][1])
        cleared = frozenset[int]().union(
            *(event.parameters for event in run.of(Cleared) if event.site == where)
        )
        alone = all(optimizer in run.owners[number] for number in cleared)
        yield RULE.finding(
            theirs if where == source else where,
            f"In {len(steps)} of {run.stepping[optimizer]} steps of {run.optimizer(optimizer)}, the gradients of "
            f"{run.names(ids)} include the loss of line {theirs.line}, in addition to the loss of line "
            f"{mine.line}.",
            why=_WHY,
            advice=f"Clear {run.optimizer(optimizer)}'s gradients right before its own backward()"
            + (", or detach the input of the other loss." if before else "."),
            fix=functools.partial(
                _apart, own=innermost(last).line, other=theirs.line if alone else 0, left=run.names(ids)
            ),
            severity=None
            if sum(against) * 2 > len(against)
            or _left_behind(run, optimizer, steps, theirs, mine)
            or any(_is_kept_apart(run, window, contribution, ids) for window, contribution in found)
            else "info",
            count=len(steps),
            evidence={"leaking_line": theirs.line, "parameters": len(ids)},
            about=ids,
        )


def _left_behind(run: Run, optimizer: int, steps: set[int], theirs: Frame, mine: Frame) -> bool:
    """Return whether the other loss comes after the step in the loop, and the first step doesn't use it."""
    first = next(window.step for window in run.windows if window.optimizer == optimizer)
    return theirs[::2] == mine[::2] and theirs.line > mine.line and first not in steps


def _is_kept_apart(run: Run, window: StepWindow, contribution: Contribution, ids: Ids) -> bool:
    """Return whether the step's own loss was computed from a value detached from the other loss's parameters.

    An example is a discriminator that gets ``fake.detach()``: the two networks should be trained separately.
    """
    others = run.backward(contribution.backward).reached - ids
    return any(
        isinstance(event, Cut) and event.op in _DETACHED and not event.scalar and event.parameters <= others
        for event in run.events[contribution.backward : window.micro[-1]]
    )


def _leaked(run: Run, window: StepWindow, own: dict[int, set[Site]]) -> Iterator[Contribution]:
    """Yield contributions that another optimizer's step used before this window's own loss was back-propagated."""
    if not window.micro or run.repeats_closure(window) or repeats(run, window):
        return  # a window that repeats used gradients lacks a clearing, which also clears the leftovers
    last = window.micro[-1]
    for contribution in window.fresh:
        number = contribution.backward
        if number < 0 or contribution.touched or run.events[number].site == run.events[last].site:
            continue
        owners = {optimizer for optimizer, lines in own.items() if run.events[number].site in lines}
        steps = set(used_by_others(run, contribution, window.optimizer))
        theirs = owners and owners <= {run.stepped(step).optimizer for step in steps}
        mine = run.events[last].site in own[window.optimizer]
        opposes = steps and (theirs or mine) and opposed(run, window, contribution) < FAR_APART
        before = any(step < last for step in steps)
        if opposes or before or (mine and is_passed_on(run, window, contribution)):
            yield contribution


def _line(
    run: Run, optimizer: int, ids: Ids, source: Site, contribution: Contribution
) -> tuple[Frame | Site, bool]:
    """Return the line to change, and whether detaching the other loss's input also helps.

    If the step's own parameters come before the other loss's (a generator before its discriminator), the input of
    the other loss must be detached. Otherwise the gradients can only be cleared later.
    """
    uses = next((event.uses for event in run.of(Backward) if event.site == source and event.uses), ())
    order = [number for number, _ in uses]
    mine = [place for place, number in enumerate(order) if number in ids]
    others = [
        place
        for place, number in enumerate(order)
        if number not in ids and run.owners.get(number, set()) - {optimizer}
    ]
    beyond = any(event.beyond & ids for event in run.of(Backward) if event.site == source)
    if mine and others and max(mine) < max(others) and not beyond:
        own = _calling(uses[max(mine)][1], source)
        entry = min(place for place in others if place > min(mine))
        used = _calling(uses[entry][1], source)
        return (own and next_use(own, innermost(source).line)) or used or source, True
    for number in range(contribution.backward - 1, -1, -1):
        event = run.events[number]
        if isinstance(event, Cleared) and event.parameters & ids and event.site:
            return event.site, False
    return source, not beyond


def _probes(run: Run) -> Iterator[tuple[Site, Finding]]:
    """Yield each line that back-propagates a probe's loss into the probe's input, with its finding."""
    reported: set[Site] = set()
    for window in run.windows:
        losses = [(run.backward(number), *loss) for number in window.micro for loss in _losses(run, number)]
        for event, site, reach in losses:
            own = reach & _of_probes(run)
            rest = (reach - own) & run.owned
            if not own or not rest or site in reported:
                continue
            others = [
                theirs for _, *loss, theirs in losses if [*loss, theirs] != [site, reach] and theirs & rest
            ]
            if all(theirs & _of_probes(run) for theirs in others) or any(theirs & own for theirs in others):
                continue
            reported.add(site)
            first = next((where for number, where in event.uses if number in own), ())
            yield (
                event.site,
                RULE.finding(
                    next((frame for frame in first if "prob" in text_of(frame).lower()), None)
                    or first
                    or site,
                    f"The loss of line {innermost(site).line} belongs to {run.names(own)}, but its gradient also "
                    f"trains {run.names(rest)}.",
                    why="A probe should measure a representation, but here the probe's loss also trains the "
                    "representation.",
                    advice="Detach the probe's input: probe(features.detach()).",
                    fix=functools.partial(
                        _without_graph, names={part for n in own for part in run.name(n).split(".")}
                    ),
                    severity="warning",
                    count=sum(backward.site == event.site for backward in run.of(Backward)),
                    evidence={"parameters": len(rest)},
                    about=rest,
                ),
            )


def _losses(run: Run, number: int) -> list[tuple[Site, Ids]]:
    """Return the lines and parameters of a backward call's terms, or none if the parameters are not known."""
    event = run.backward(number)
    if len(event.terms) == 1:
        return [(event.site, event.reached)]
    return [(term.site, term.reach) for term in run.terms(number) if term.reach]


def _of_probes(run: Run) -> Ids:
    return frozenset(number for number in run.owned if _PROBE.search(run.name(number)))


def _calling(site: Site, beside: Site) -> Frame | None:
    """Return the line, in the function that calls backward, through which a parameter was used."""
    functions = {(frame.file, frame.function) for frame in beside}
    return next((frame for frame in site if (frame.file, frame.function) in functions), None)


# The fix: clear later, or detach


def _apart(at: Statement, *, own: int, left: str, other: int = 0) -> Fix:
    """Clear right before the step's own backward call, below the ``other``, or detach the other loss's input."""
    if method(at.node) == "zero_grad":
        first = [node for node in at.beside("backward") if node.lineno == own]
        low, high = sorted((own, at.line))
        between = [
            node for node in at.beside("backward") if low < node.lineno < high and node.lineno != other
        ]
        return (Move(at.line, before=own),) if first and not between else ()
    module = left.partition(".")[0]
    made = {
        ast.unparse(node.targets[0])
        for node in at.block
        if isinstance(node, ast.Assign) and node.lineno < at.line
        if isinstance(node.value, ast.Call) and last_name(node.value.func) == module
    }
    given = [call.args[0] for call in _of_one_name(at) if ast.unparse(call.args[0]) in made]
    if isinstance(at.node, ast.Assign) and _uses_with_graph(at, at.node.targets[0]) > 1:
        return ()  # another loss also uses the value and needs its graph
    return _detached(at, given)


def _without_graph(at: Statement, *, names: set[str]) -> Fix:
    return _detached(at, [call.args[0] for call in _of_one_name(at) if last_name(call.func) in names])


def _of_one_name(at: Statement) -> list[ast.Call]:
    calls = [call for call in at.calls() if len(call.args) == 1 and not call.keywords]
    return [call for call in calls if isinstance(call.args[0], ast.Name)]


def _detached(at: Statement, given: list[ast.expr]) -> Fix:
    calls = [call for call in _of_one_name(at) if call.args[0] in given]
    if len(calls) != 1:
        return ()
    function, name = ast.unparse(calls[0].func), ast.unparse(calls[0].args[0])
    return (Replace(at.line, f"{function}({name})", f"{function}({name}.detach())"),)


def _uses_with_graph(at: Statement, target: ast.AST) -> int:
    """Count the later statements of the block that use a value with its graph, until the name is assigned again."""
    name, times = ast.unparse(target), 0
    for statement in at.block:
        if statement.lineno <= at.line:
            continue
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id == name]
        number = re.search(r"\.item\(\)|\.detach\(\)|print\(", ast.unparse(statement))
        times += any(isinstance(node.ctx, ast.Load) for node in names) and number is None
        if any(isinstance(node.ctx, ast.Store) for node in names):
            break
    return times


RULE = Rule("GG203", "cross-loss-leak", "error", __doc__ or "", _judge)
