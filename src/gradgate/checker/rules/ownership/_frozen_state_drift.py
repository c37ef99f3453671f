"""Frozen parameters or batch-norm statistics keep changing.

## What it does
Looks for frozen parameters (``requires_grad`` is off, or the script sets their gradients to zero) that an optimizer
still changes through a leftover gradient, momentum or weight decay. Looks for parameters that a script fails to
freeze because it sets ``requires_grad`` of a module or misspells the attribute. Also looks for batch norms
whose running statistics follow new data although their parameters are frozen for the rest of the run, or
although they run only under ``no_grad``. The finding says how far the statistics moved.

## Why is this bad?
The frozen part changes a little in each step. In evaluation, a batch norm uses its running statistics. If they have
drifted, the frozen network no longer computes the features that it learned.

## Example
    model.backbone.requires_grad_(False)
    optimizer.zero_grad(set_to_none=False)     # zero gradients: momentum and weight decay continue
    model.train()                              # also the backbone's batch norms

## Use instead
    model.backbone.requires_grad_(False)
    optimizer.zero_grad()                      # None: the optimizer skips the backbone
    model.train()
    model.backbone.eval()

or create the optimizer with the trained parameters only.

## Known limits
Single rows of a parameter that are frozen by a hook (it sets their gradient to zero) are not checked, although
momentum and weight decay still move them. Batch norms of a network that this run trained earlier are checked only
if they are frozen.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Evaluation Mode".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._gradient_modes import requires_grad
from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import files_of, inside, tree_of
from gradgate.checker.analysis._statement import Statement, owner
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ownership._batch_norms import freezing_line, moving_statistics
from gradgate.checker.rules.texts import ownership as texts
from gradgate.events import Frame, Parameter, Stepped

_STEPS = 2


def _judge(run: Run) -> Iterator[Finding]:
    yield from _misfrozen(run)
    yield from _stepped(run)
    yield from moving_statistics(run, RULE)


def _stepped(run: Run) -> Iterator[Finding]:
    """Yield frozen parameters that steps changed without a new gradient."""
    steps_of = [(run.stepped(window.step), window) for window in run.windows]
    drifts = ((step, (step.frozen & step.moved) - window.parameters) for step, window in steps_of)
    found = grouped((step.optimizer, (drift, drift <= step.zero)) for step, drift in drifts if drift)
    for optimizer, steps in found.items():
        if len(steps) < _STEPS:
            continue
        ids = union(drift for drift, _ in steps)
        name = run.optimizer(optimizer)
        how = (
            "by momentum or weight decay, because their gradients are zero instead of None"
            if all(zero for _, zero in steps)
            else "with a leftover gradient"
        )
        yield RULE.say(
            freezing_line(run, ids) or run.made[optimizer][0].site,
            texts.FROZEN_MOVES,
            fix=partial(_without_gradients, names={run.name(number) for number in ids}),
            count=len(steps),
            parameters=len(ids),
            s="s" if len(ids) > 1 else "",
            names=run.names(ids),
            steps=len(steps),
            optimizer=name,
            how=how,
        )


def _misfrozen(run: Run) -> Iterator[Finding]:
    """Yield parameters that steps changed although the script set an attribute to freeze them."""
    several = [run.parameters[number] for number in run.moved]
    misfrozen = [each for each in several if each.misfrozen and each.trainable]
    found = grouped((_setting_line(run, each), each.id) for each in misfrozen)
    for line, ids in found.items():
        if line is None:
            continue
        attribute = run.parameters[min(ids)].misfrozen
        yield RULE.say(
            line,
            texts.MISFROZEN,
            count=run.log.steps,
            attribute=attribute,
            steps=run.log.steps,
            names=run.names(ids),
        )


def _setting_line(run: Run, parameter: Parameter) -> Frame | None:
    """Return the line that sets the attribute. ``self.name = False`` may set a real field, so it doesn't count."""
    parts = parameter.name.split(".")[:-1]
    for file in files_of({event.site for event in run.of(Stepped)}):
        for node in inside(ast.Assign, tree_of(file)):
            target = node.targets[0]
            if not isinstance(target, ast.Attribute) or target.attr != parameter.misfrozen:
                continue
            of = ast.unparse(target.value).rpartition(".")[2]
            known = of in parts if target.attr == "requires_grad" else of != "self"
            if known and getattr(node.value, "value", None) is False:
                return Frame(file, target.lineno, "")
    return None


def _without_gradients(at: Statement, names: set[str]) -> Fix:
    """Set the gradients of frozen parameters to None, so that steps no longer move them."""
    value = next(filter(None, map(requires_grad, at.expressions())), None)
    if value is None or getattr(value, "value", None) is not False:
        return ()
    target = at.node.targets[0] if isinstance(at.node, ast.Assign) else None
    frozen = ast.unparse(target.value) if isinstance(target, ast.Attribute) else owner(at.node)
    item = any(isinstance(loop, ast.For) and ast.unparse(loop.target) == frozen for loop in at.loops[:1])
    own = f".{frozen.removeprefix('self.')}"
    if item or any(f".{name}".endswith(own) for name in names):
        return (Insert(f"{frozen}.grad = None", after=at.line),)
    # With another name it may be a module or a parameter, and a parameter has no zero_grad.
    module = any(f"{own}." in f".{name}" for name in names)
    return (Insert(f"{frozen}.zero_grad()", after=at.line),) if module else ()


RULE = Rule("GG505", "frozen-state-drift", "error", __doc__ or "", _judge)
