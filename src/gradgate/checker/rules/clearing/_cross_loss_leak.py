"""A step uses the gradient of a loss that belongs to another optimizer.

## What it does
Looks for steps that use the gradients of two losses, if one of these gradients is a leftover. A gradient is a
leftover if another optimizer's step used it before the second loss was back-propagated, or if the two gradients
point in opposite directions. Also reports:

- a discriminator or critic that steps only after another network's loss was back-propagated through it;
- an adversarial attack of several iterations whose ``backward()`` also fills the gradients that the step uses.

## Why is this bad?
A GAN's generator loss is small if the discriminator is wrong. If the discriminator's step uses the gradient of this
loss, the discriminator learns to be wrong.

## Example
    opt_d.step(); opt_d.zero_grad()
    g_loss = bce(D(G(z)), real); g_loss.backward()      # also fills D's gradients
    opt_g.step()
    ...
        d_loss.backward(); opt_d.step()                     # this step also uses the gradient of g_loss

## Use instead
    opt_d.zero_grad()                                   # before d_loss.backward(), not after the step
    d_loss.backward(); opt_d.step()

or use two ``gradgate.Accumulator`` objects. Each fills only the gradients of its own parameters, by
``update.backward(loss)``.

## Known limits
A probe whose input is not detached also trains the representation that it reads. That is not reported, because the
loss of any head may train the trunk on purpose. An attack with a single
backward call is not reported, because its loss may be a part of the training loss. If both losses are
back-propagated before either optimizer's step, they are reported only if their gradients point in opposite
directions, or if the other optimizer's loss compares nothing with data: ``-q(state, policy(state)).mean()``. If
the directions agree and the other loss comes first in the loop, the leftover may be intended (BicycleGAN's latent
loss). The finding is then a note, unless the other loss compares nothing with data, or the step's own loss uses a
value detached from the other loss's network.
A leftover of a later loss is not found if it is small compared with the step's own gradient. An example is a
discriminator's loss in a variational autoencoder.

## Sources
docs/several_losses.md, "who owns what"
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from gradgate.checker.analysis._gradient_reads import reads_gradients
from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._queries import (
    Loss,
    calls_of,
    loss_of,
    own_losses,
    repeats,
    shared_line,
    windows_of,
)
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import inside, next_use
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.analysis._values import PARTS, flow
from gradgate.checker.excuses import attacked_loss
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._graph_fixes import detached
from gradgate.checker.rules.texts import clearing as texts
from gradgate.events import Cleared, Frame, Ids, Opposed, Site

_FAR_APART = -0.6  # a mean cosine below which two losses oppose each other


def _judge(run: Run) -> Iterator[Finding]:
    yield from _attacks(run)
    found = grouped(
        ((leak.window.optimizer, loss_of(run, leak.part.backward), leak.late), leak) for leak in leaks(run)
    )
    for (optimizer, loss, late), several in found.items():
        steps = {leak.window.step for leak in several}
        watched = sum(run.stepped(step).seen for step in steps)
        if len(steps) < 2 or watched * 4 < run.watched(optimizer):
            continue
        ids, last, name = union(leak.part.atom for leak in several), several[0].own, run.optimizer(optimizer)
        places = (loss.site, last.site) if loss.site != last.site else (loss.computed, last.computed)
        theirs, mine = where_they_differ(*places)
        where: Frame | Site
        where, before = run.events[several[0].window.step].site, False
        if not late:
            where, before = _line(run, optimizer, ids, loss, several[-1].part)
        surely = late or _is_sure(run, several, loss, theirs, mine, ids)
        clear = f"Clear {name}'s gradients right before its own backward()"
        yield RULE.say(
            theirs if where == loss.site else where,
            texts.LEAK,
            fix=()
            if late
            else partial(_apart, own=innermost(last.site).line, other=theirs.line, left=run.names(ids)),
            severity="warning" if late else None if surely else "info",
            count=watched,
            about=ids,
            times=watched,
            steps=run.steps_of(optimizer),
            names=run.names(ids),
            leaking_line=theirs.line,
            own_line=mine.line,
            parameters=len(ids),
            advice=f"Step {name} after its own backward(), before the other loss is computed."
            if late
            else clear + (", or detach the input of the other loss." if before else "."),
        )


def _is_sure(run: Run, several: list[Leak], loss: Loss, theirs: Frame, mine: Frame, ids: Ids) -> bool:
    """Return whether the other loss can't be meant: it opposes the step's own, or is kept apart elsewhere."""
    optimizer, steps = several[0].window.optimizer, {leak.window.step for leak in several}
    examined = [leak for leak in several if run.stepped(leak.window.step).seen]
    against = [opposed(run, leak.window, leak.part) < -0.05 for leak in examined]
    return (
        sum(against) * 2 > len(against)
        or is_driven(run, loss, optimizer)
        or _left_behind(run, optimizer, steps, theirs, mine)
        or any(_is_kept_apart(run, leak, ids) for leak in several)
    )


def _attacks(run: Run) -> Iterator[Finding]:
    """Report lines that call backward in a loop for an input's gradient, if a step uses the other gradients."""
    found: dict[Frame, dict[int, tuple[int, int]]] = defaultdict(dict)  # step: calls, and the training loss
    for _, site, windows in run.accumulating():
        for window, micro in windows:
            own = attacked_loss(run, window, micro)
            weighed = any(term.factors for number in micro for term in run.backward(number).terms)
            if own is not None and not weighed and reads_gradients(site, run.events[own].site):
                found[innermost(site)].setdefault(window.step, (len(micro), own))
    for line, steps in found.items():
        if len(steps) >= 2:
            step, (_, number) = next(iter(steps.items()))
            yield RULE.say(
                line,
                texts.ATTACK,
                severity="warning",
                count=len(steps),
                times=len(steps),
                steps=run.steps_of(run.stepped(step).optimizer),
                backwards=Counter(size for size, _ in steps.values()).most_common(1)[0][0],
                training_line=innermost(run.events[number].site).line,
            )


class Leak(NamedTuple):
    """A contribution of another optimizer's loss to a step.

    ``late``: the other loss was back-propagated after all of the step's own losses, so the step could come first.
    """

    window: StepWindow
    part: Contribution
    own: Loss  # the step's last own loss
    late: bool


def leaks(run: Run) -> Iterator[Leak]:
    """Yield the leaks into each step.

    A late loss is a leak only if its gradient opposes that of the step's own loss, or if it compares nothing with
    data. An encoder's loss through a decoder, and the decoder's own loss, both say what to decode, so they may be
    added.
    """
    own = {optimizer: own_losses(run, optimizer) for optimizer in run.stepping}
    for window in run.windows:
        mine = own[window.optimizer]
        last = max((number for number in window.micro if loss_of(run, number) in mine), default=0)
        for part in window.fresh if last else ():
            if part.backward > last and not part.touched and _is_passed_on(run, window, part):
                yield Leak(window, part, loss_of(run, last), late=True)
        # A window that repeats used gradients lacks a clearing, which would also clear the leftovers.
        if window.micro and not run.repeats_closure(window) and not repeats(run, window):
            loss = loss_of(run, window.micro[-1])
            yield from (Leak(window, part, loss, late=False) for part in _leftovers(run, window, own))


def _leftovers(run: Run, window: StepWindow, own: dict[int, set[Loss]]) -> Iterator[Contribution]:
    """Yield contributions that another optimizer's step used before this window's own loss was back-propagated."""
    last = window.micro[-1]
    mine = loss_of(run, last) in own[window.optimizer]
    for part in window.fresh:
        if part.backward < 0 or part.touched or loss_of(run, part.backward) == loss_of(run, last):
            continue
        owners = {optimizer for optimizer, losses in own.items() if loss_of(run, part.backward) in losses}
        steps = _steps_of_others(run, part, window.optimizer)
        theirs = owners and owners <= {run.stepped(step).optimizer for step in steps}
        opposes = steps and (theirs or mine) and opposed(run, window, part) < _FAR_APART
        if opposes or any(step < last for step in steps) or (mine and _is_passed_on(run, window, part)):
            yield part


def opposed(run: Run, window: StepWindow, contribution: Contribution) -> float:
    """Return the mean recorded cosine between a contribution and other gradients of its window; 0 if unknown."""
    cosines = [
        cosine
        for event in run.events[contribution.backward : window.step]
        if isinstance(event, Opposed)
        for number, cosine in event.cosines
        if number in contribution.atom
    ]
    return sum(cosines) / len(cosines) if cosines else 0.0


def _steps_of_others(run: Run, part: Contribution, optimizer: int) -> set[int]:
    """Return the steps of other optimizers that used gradients of the same backward call."""
    siblings = (other for other in run.by_backward[part.backward] if other is not part)
    steps = {step for sibling in siblings for step in sibling.consumed}
    return {step for step in steps if run.stepped(step).optimizer != optimizer}


def _is_passed_on(run: Run, window: StepWindow, part: Contribution) -> bool:
    """Return whether a loss is another optimizer's own, and these parameters should only pass its gradient on."""
    loss, steps = loss_of(run, part.backward), _steps_of_others(run, part, window.optimizer)
    users = (each for each in run.windows if each.micro and each.step in steps)
    if not any(loss_of(run, each.micro[-1]) == loss for each in users):
        return False
    through = any(event.beyond & run.held(window.optimizer) for event in calls_of(run, loss))
    return through and (is_driven(run, loss, window.optimizer) or opposed(run, window, part) < _FAR_APART)


def is_driven(run: Run, loss: Loss, optimizer: int) -> bool:
    """Return whether a loss pushes the output of this optimizer's parameters in one direction."""
    held = run.held(optimizer)
    return any(event.driven & event.beyond & held for event in calls_of(run, loss))


def where_they_differ(first: Site, second: Site) -> tuple[Frame, Frame]:
    """Return the first lines at which two stacks differ: two losses may share a function that calls backward."""
    pairs = zip(first, second, strict=False)
    return next(((one, other) for one, other in pairs if one != other), (innermost(first), innermost(second)))


def _left_behind(run: Run, optimizer: int, steps: set[int], theirs: Frame, mine: Frame) -> bool:
    """Return whether the other loss comes after the step in the loop, and the first step doesn't use it."""
    after = theirs[::2] == mine[::2] and theirs.line > mine.line
    return after and windows_of(run, optimizer)[0].step not in steps


def _is_kept_apart(run: Run, leak: Leak, ids: Ids) -> bool:
    """Return whether the step's own loss was computed from a value detached from the other loss's parameters.

    An example is a discriminator that gets ``fake.detach()``: the two networks should be trained separately.
    """
    shadow, theirs, mine = flow(run), run.backward(leak.part.backward), run.backward(leak.window.micro[-1])
    others = shadow.bits(theirs.reached - ids)
    return theirs.root >= 0 and any(
        node.op in PARTS and node.size > 1 and (lost := shadow.cut[number]) and not lost & ~others
        for number, node in enumerate(shadow.nodes[theirs.root : mine.root], theirs.root)
    )


def _line(run: Run, optimizer: int, ids: Ids, loss: Loss, part: Contribution) -> tuple[Frame | Site, bool]:
    """Return the line to change, and whether detaching the other loss's input also helps.

    If the step's own parameters come before the other loss's (a generator before its discriminator), the input of
    the other loss must be detached. Otherwise the gradients can only be cleared later.
    """
    events, source = calls_of(run, loss), loss.site
    uses = next((event.uses for event in events if event.uses), ())
    mine = [place for place, (number, _) in enumerate(uses) if number in ids]
    others = [
        place
        for place, (number, _) in enumerate(uses)
        if number not in ids and run.owners.get(number, set()) - {optimizer}
    ]
    beyond = any(event.beyond & ids for event in events)
    if mine and others and max(mine) < max(others) and not beyond:
        own = shared_line(uses[max(mine)][1], source)
        used = shared_line(uses[min(place for place in others if place > min(mine))][1], source)
        return (own and next_use(own, innermost(source).line)) or used or source, True
    for event in reversed(run.events[: part.backward]):
        if isinstance(event, Cleared) and event.parameters & ids and event.site:
            return event.site, False
    return source, not beyond


def _apart(at: Statement, *, own: int, left: str, other: int = 0) -> Fix:
    """Clear right before the step's own backward call and after ``other``, or detach the other loss's input."""
    if method(at.node) == "zero_grad":
        low, high = sorted((own, at.line))
        lines = {node.lineno for node in at.beside("backward")}
        between = any(low < line < high and line != other for line in lines)
        return (Move(at.line, before=own),) if own in lines and not between else ()
    module = left.partition(".")[0]
    made = {
        ast.unparse(node.targets[0])
        for node in at.block
        if isinstance(node, ast.Assign) and node.lineno < at.line and method(node) == module
    }
    if isinstance(at.node, ast.Assign) and _uses_with_graph(at, at.node.targets[0]) > 1:
        return ()  # another loss also uses the value and needs its graph
    return detached([call for call in _of_one_name(at) if ast.unparse(call.args[0]) in made])


def _uses_with_graph(at: Statement, target: ast.AST) -> int:
    """Count the later statements of the block that use a value with its graph, until the name is assigned again."""
    times = 0
    for statement in (node for node in at.block if node.lineno > at.line):
        uses = [type(node.ctx) for node in inside(ast.Name, statement) if node.id == ast.unparse(target)]
        without = re.search(r"\.item\(\)|\.detach\(\)|print\(", ast.unparse(statement))
        times += ast.Load in uses and without is None
        if ast.Store in uses:
            break
    return times


def _of_one_name(at: Statement) -> list[ast.Call]:
    """Return the calls in a statement whose only argument is a name."""
    calls = [call for call in at.calls() if len(call.args) == 1 and not call.keywords]
    return [call for call in calls if isinstance(call.args[0], ast.Name)]


RULE = Rule("GG203", "cross-loss-leak", "error", __doc__ or "", _judge)
