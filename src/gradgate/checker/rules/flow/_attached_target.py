"""A target or a weight in the loss has a gradient although the loss should treat it as a constant.

## What it does
Reports these values if gradient flows into them:

- a bootstrapped target (data plus a multiple of the network's value of the next state) that is compared with the
  same network's value;
- an advantage that multiplies a log-probability, while a squared error trains the value inside the advantage;
- the target of ``kl_div``, if no other loss trains the target's network (a teacher), if the network has an
  optimizer and a cross entropy of its own in the same loss, or if one line back-propagates the losses of two
  networks that are each other's teacher;
- the target of an error such as ``mse_loss``, if the target's network is in evaluation mode, is trained by no other
  loss, and shares its optimizer with the network that the target trains;
- the target of a binary cross entropy, if it is computed from the network's own output, such as the IoU of
  predicted boxes as the target of their objectness;
- either side of a loss that only compares two views, one of them after a predictor (SimSiam, BYOL);
- the output of a network whose weights are a running average of the trained network's weights (a mean teacher), if
  the average was computed with a gradient;
- both sides of an error that the loss adds again with another weight, such as the codebook's and the commitment
  term of a VQ-VAE, or that the loss adds again with one of the sides detached;
- the output of a network that other code moves between the steps (an average or a copy of a trained network), if an
  optimizer also updates the network with the loss's gradient;
- a value on which ``detach()`` is called as a statement of its own, which discards the result.

## Why is this bad?
The loss then also trains the target towards the prediction, or trains the critic to make the policy's loss small.
Training gets slower or diverges, and no error is raised.

## Example
    target = reward + gamma * q(next_state).max(1).values
    policy_loss = -(log_prob * (returns - value)).mean()

## Use instead
    with torch.no_grad():
        target = reward + gamma * q(next_state).max(1).values
    policy_loss = -(log_prob * (returns - value).detach()).mean()

## Known limits
A bootstrapped target is recognized if it is the sum of data and a product and has one number for each sample. An
advantage is recognized if the same backward call trains its value by a squared or Huber error. The target of a
binary cross entropy is not reported in three cases: it is computed from the values that it is compared with (an
entropy), two views are each compared with the other, or all parameters that it depends on also affect the input.
The last case is still reported if the target was written into a tensor of data. A value whose gradients no step
uses is not reported: GG405 reports the gradients if they cost much or are never cleared. An error is not judged if
the script writes out the difference instead of calling a loss function. A loss is not judged if its gradients are
differentiated again. A network that is compared with itself on other data (a consistency model's own output) is not
reported if there is no predictor or if the loss has another term, because both sides may have a gradient on
purpose. For the same reason, a residual that an auxiliary decoder approximates is not reported.

## Sources
Sutton and Barto, "Reinforcement Learning: An Introduction", section 11.5; Baird, "Residual algorithms", 1995; Chen
and He, "Exploring Simple Siamese Representation Learning", 2021, section 4.1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._queries import Combination, combinations
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import own_nodes
from gradgate.checker.analysis._slices import files_of, slice_at
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._graph_fixes import kept
from gradgate.checker.rules.flow._trained_averages import trained_averages
from gradgate.checker.rules.texts import flow_reach as texts
from gradgate.events import Backward, Cut, Differentiated, Frame, Ids, ModeSet


def _judge(run: Run) -> Iterator[Finding]:
    yield from _dropped(run)
    if any(event.create for event in run.of(Differentiated)):
        return
    reported: Ids = frozenset()
    for each in combinations(run, texts.ATTACHED):
        if not _is_trained(run, each):
            continue  # wasted-gradient reports gradients that no step uses
        if each.how in ("teacher", "trained target") and _has_other_losses(run, each):
            continue
        if each.how == "views" and not _is_trained_together(run, each):
            continue
        if each.how == "detached once" and len(each.numbers) < min(each.times, 2):
            continue  # a constant that happens to equal the value, such as an average before the first step
        if each.how == "pulled teacher" and not _has_its_own_optimizer(run, each):
            continue
        if each.how == "trained target" and not _is_fixed_beside_a_student(run, each):
            continue
        how = "peers" if each.how == "teacher" and _are_peers(run, each) else each.how
        yield RULE.say(
            each.site, texts.ATTACHED[how], count=each.times, about=each.ids, names=run.names(each.ids)
        )
        reported |= each.ids
    yield from (each for each in trained_averages(run, RULE) if not each.about <= reported)


def _dropped(run: Run) -> Iterator[Finding]:
    """Yield each statement that calls ``detach()`` and drops the result, if the next loss uses the value."""
    found: dict[Frame, tuple[str, Ids]] = {}
    loss: Backward | None = None
    for event in reversed(run.of(Cut, Backward)):
        if isinstance(event, Backward):
            loss = event
        elif loss is not None and event.op == "detach" and event.site and not event.scalar:
            at, ids = Statement.at(event.site[0]), event.parameters & loss.reached
            if at is not None and isinstance(at.node, ast.Expr) and method(at.node) == "detach" and ids:
                used = slice_at(loss.site, files_of([loss.site, event.site])).nodes
                own = {id(node) for node in own_nodes(at.function) if getattr(node, "lineno", 0) > at.line}
                if any(id(node) in own and ast.unparse(node) == owner(at.node) for _, node in used):
                    found[event.site[0]] = owner(at.node), ids
    for frame, (name, ids) in found.items():
        yield RULE.say(
            frame,
            texts.DROPPED,
            fix=kept,
            count=len(run.calls_reaching(ids)),
            about=ids,
            name=name,
            names=run.names(ids),
        )


def _is_trained(run: Run, target: Combination) -> bool:
    """Return whether a step that used a gradient of this loss changed one of the target's parameters."""
    steps = {
        (step, part.atom & target.ids)
        for number, several in run.by_backward.items()
        if number >= 0 and run.events[number].site == target.first.backward
        for part in several
        if part.atom & target.ids
        for step in part.consumed
    }
    return any(run.stepped(step).moved & ids or not run.stepped(step).seen for step, ids in steps)


def _is_trained_together(run: Run, views: Combination) -> bool:
    """Return whether the same optimizers hold all parameters behind two views: none is in a fixed loss network."""
    first, *others = (run.owners.get(number) for number in views.first.parameters)
    return all(each == first for each in others)


def _has_other_losses(run: Run, target: Combination) -> bool:
    """Return whether a later backward call of another line reaches the target's parameters."""
    return any(
        event.reached & target.ids and event.site != target.first.backward
        for number, event in run.numbered(Backward)
        if number > target.numbers[0]
    )


def _are_peers(run: Run, target: Combination) -> bool:
    """Return whether another call of the line trains the parameters behind a target (mutual learning)."""
    trained: set[int] = set()
    for number in target.numbers:
        loss = next(event for event in reversed(run.events[:number]) if isinstance(event, Backward))
        trained |= loss.reached - run.events[number].parameters  # type: ignore[attr-defined]
    return bool(trained & target.ids)


def _has_its_own_optimizer(run: Run, target: Combination) -> bool:
    """Return whether a target's parameters share no optimizer with others that the same losses reach."""
    others = union(event.reached for event in run.calls_at(target.first.backward)) - target.ids
    return run.optimizers_of(target.ids).isdisjoint(run.optimizers_of(others))


def _is_fixed_beside_a_student(run: Run, target: Combination) -> bool:
    """Return whether a network shares its optimizer with the network it is compared with, but looks finished.

    It is in evaluation mode, or another optimizer has trained it before.
    """
    ids = target.ids
    calls = [event for event in run.calls_at(target.first.backward) if event.reached & ids]
    others = union(event.reached for event in calls) - ids
    modes = [event for event in run.of(ModeSet) if event.parameters & ids]
    students = run.optimizers_of(others)
    evaluates = bool(modes) and not (modes[-1].training or modes[-1].parameters & others)
    done = all(run.owners.get(number, set()) - students for number in ids) and not any(
        run.steps(each)[-1:] > [target.numbers[0]] for each in run.optimizers_of(ids) - students
    )
    return (evaluates or done) and all(run.owners.get(number, set()) & students for number in ids)


RULE = Rule("GG406", "attached-target", "warning", __doc__ or "", _judge)
