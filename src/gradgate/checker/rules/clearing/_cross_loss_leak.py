"""A step uses the gradient of a loss that belongs to another optimizer.

## What it does
Looks for steps that use the gradients of two losses, if one of these gradients is a leftover. A gradient is a
leftover if another optimizer's step used it before the second loss was back-propagated, or if the two gradients
point in opposite directions. Also reports:

- a discriminator or critic that steps only after another network's loss was back-propagated through it;
- a probe whose loss trains the representation that the probe reads;
- a test loss (by its name) that is back-propagated after the clearing, so that the next step uses its gradient;
- an adversarial attack of several iterations whose ``backward()`` also fills the gradients that the step uses.

## Why is this bad?
A GAN's generator loss is small if the discriminator is wrong. If the discriminator's step uses the gradient of this
loss, the discriminator learns to be wrong. A probe whose input is not detached changes the representation that the
probe should measure.

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
A module is a probe if its name, its optimizer's name or its loss's name says so. The loss of any other head may
train the trunk on purpose, so a confidence head that is not detached is not found. An attack with a single
backward call is not reported, because its loss may be a part of the training loss. If both losses are
back-propagated before either optimizer's step, they are reported only if their gradients point in opposite
directions, or if the other optimizer's loss compares nothing with data: ``-q(state, policy(state)).mean()``. If
the directions agree and the other loss comes first in the loop, the leftover may be intended (BicycleGAN's latent
loss). The finding is then a note, unless the other loss compares nothing with data, or the step's own loss uses a
value detached from the other loss's network.
A leftover of a later loss is not found if it is small compared with the step's own gradient. An example is a
discriminator's loss in a variational autoencoder.

## Sources
docs/accumulation.md, "several losses".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._history import Contribution
from gradgate.checker.analysis._queries import Loss, calls_of, loss_of, shared_line, windows_of, with_line_of
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import inside, next_use, text_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.clearing._attacks import attacks
from gradgate.checker.rules.clearing._leaks import Leak, is_driven, leaks, opposed
from gradgate.checker.rules.clearing._probes import of_one_name, probes
from gradgate.checker.rules.flow._graph_fixes import detached
from gradgate.events import Cleared, Cut, Frame, Ids, Site

_MEASURED = re.compile(r"(^|_|\b)(test|val|valid|validation|eval)(_|\b|$)", re.IGNORECASE)
_DETACHED = ("detach", "detach_", "data")
_WHY = "The step also minimizes another optimizer's loss. In adversarial training the two losses oppose each other."
_WHY_LATE = (
    "The step also minimizes another optimizer's loss. These parameters should only pass on the gradient of that "
    "loss."
)


def _judge(run: Run) -> Iterator[Finding]:
    of_probes = list(probes(run, RULE))
    yield from (finding for _, finding in of_probes)
    yield from _measured(run)
    yield from attacks(run, RULE)
    found = grouped(
        ((leak.window.optimizer, loss_of(run, leak.part.backward), leak.late), leak) for leak in leaks(run)
    )
    for (optimizer, loss, late), several in found.items():
        steps = {leak.window.step for leak in several}
        watched = sum(run.stepped(step).seen for step in steps)
        if len(steps) < 2 or watched * 4 < run.watched(optimizer):
            continue
        ids: Ids = frozenset().union(*(leak.part.atom for leak in several))
        source, last = loss.site, several[0].own
        places = (source, last.site) if source != last.site else (loss.computed, last.computed)
        theirs, mine = where_they_differ(*places)
        name = run.optimizer(optimizer)
        say = partial(
            RULE.finding,
            message=f"In {watched} of {run.steps_of(optimizer)}, the gradients of "
            f"{run.names(ids)} include the loss of line {theirs.line}, in addition to the loss of line "
            f"{mine.line}.",
            count=watched,
            evidence={"leaking_line": theirs.line, "parameters": len(ids)},
            about=ids,
        )
        own = innermost(last.site)
        if late:
            yield say(
                run.events[several[0].window.step].site,
                why=_WHY_LATE,
                advice=f"Step {name} after its own backward(), before the other loss is computed.",
                fix=partial(_step_first, own=own, other=innermost(source)),
                severity="warning",
            )
        elif not any(source == site for site, _ in of_probes):
            where, before = _line(run, optimizer, ids, loss, several[-1].part)
            cleared = {n for event in run.of(Cleared) if event.site == where for n in event.parameters}
            alone = all(optimizer in run.owners[number] for number in cleared)
            examined = [leak for leak in several if run.stepped(leak.window.step).seen]
            against = [opposed(run, leak.window, leak.part) < -0.05 for leak in examined]
            surely = (
                sum(against) * 2 > len(against)
                or is_driven(run, loss, optimizer)
                or _left_behind(run, optimizer, steps, theirs, mine)
                or any(_is_kept_apart(run, leak, ids) for leak in several)
            )
            yield say(
                theirs if where == source else where,
                why=_WHY,
                advice=f"Clear {name}'s gradients right before its own backward()"
                + (", or detach the input of the other loss." if before else "."),
                fix=partial(_apart, own=own.line, other=theirs.line if alone else 0, left=run.names(ids)),
                severity=None if surely else "info",
            )


def _measured(run: Run) -> Iterator[Finding]:
    """Report a test loss that is back-propagated after the step, so that every step but the first uses it."""
    for optimizer in run.stepping:
        windows = windows_of(run, optimizer)
        first, *later = [{loss_of(run, number) for number in each.micro} for each in windows] or [set()]
        for loss in set.intersection(*later) - first if len(later) > 1 and first & later[0] else ():
            name = text_of(innermost(loss.site)).partition("backward")[0]
            lines = with_line_of(loss.site, run.events[windows[0].step].site)
            follows = next((frame.line > line for frame, line in lines if line is not None), False)
            if follows and _MEASURED.search(name):
                yield RULE.finding(
                    loss.site,
                    f"Each step of {run.optimizer(optimizer)} but the first also uses the gradient of this loss, "
                    "which is back-propagated after the last clearing.",
                    why="The model trains on the data that it is tested with.",
                    advice="Only measure this loss: remove its backward().",
                    count=len(later),
                    evidence={"steps": len(later)},
                )


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
    others = run.backward(leak.part.backward).reached - ids
    return any(
        isinstance(event, Cut) and event.op in _DETACHED and not event.scalar and event.parameters <= others
        for event in run.events[leak.part.backward : leak.window.micro[-1]]
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


# The fix: clear later, step earlier, or detach


def _step_first(at: Statement, *, own: Frame, other: Frame) -> Fix:
    """Move the step to its own backward call, if the other loss is computed after that."""
    calls = {node.lineno: node for node in at.beside("backward")}
    first, second = calls.get(own.line), calls.get(other.line)
    between = [node for node in at.block if first is not None and first.lineno < node.lineno < at.line]
    if first is None or second not in between or method(at.node) != "step":
        return ()
    computed = any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == owner(second) for node in between
    )
    prepared = any(method(node).startswith(("clip_grad", "unscale_")) for node in between)
    return (Move(at.line, after=first.lineno),) if computed and not prepared else ()


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
    return detached([call for call in of_one_name(at) if ast.unparse(call.args[0]) in made])


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


RULE = Rule("GG203", "cross-loss-leak", "error", __doc__ or "", _judge)
