"""Frozen parameters or batch-norm statistics keep changing.

## What it does
Looks for frozen parameters (``requires_grad`` is off, or the script sets their gradients to zero) that an optimizer
still changes through a leftover gradient, momentum or weight decay. Also looks for parameters that
``module.requires_grad = False`` or a misspelled attribute does not freeze. Also looks for batch norms whose running
statistics follow new data although their parameters are frozen for the rest of the run, or although they run only
under ``no_grad``, and measures the change.

## Why is this bad?
The frozen part changes a little in each step. Evaluation uses the statistics of a batch norm, so the frozen
features differ from the trained features.

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
Rows of a parameter, whose gradient a hook sets to zero, are not checked: momentum and weight decay still move them.
Batch norms of a network that this run trained earlier are checked only if they are frozen.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Evaluation Mode".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.ownership._batch_norms import freezing_line, moving_statistics
from gradgate.checker.rules.ownership._freeze_fixes import none_instead, without_gradients
from gradgate.checker.rules.ownership._misfrozen import misfrozen
from gradgate.events import Ids, Site, Stepped, Written

_WHY = "The frozen part changes in every step."
_STEPS = 2


def _judge(run: Run) -> Iterator[Finding]:
    yield from misfrozen(run, RULE)
    yield from _stepped(run)
    yield from _zeroed(run)
    yield from moving_statistics(run, RULE)


def _stepped(run: Run) -> Iterator[Finding]:
    """Yield frozen parameters that steps changed without a new gradient."""
    found: dict[int, list[tuple[Ids, bool]]] = defaultdict(list)
    for window in run.windows:
        event = run.stepped(window.step)
        drifting = (event.frozen & event.moved) - window.parameters
        if drifting:
            found[event.optimizer].append((drifting, drifting <= event.zero))
    for optimizer, steps in found.items():
        if len(steps) < _STEPS:
            continue
        ids: Ids = frozenset().union(*(drifting for drifting, _ in steps))
        name = run.optimizer(optimizer)
        how = (
            "by momentum or weight decay, because their gradients are zero instead of None"
            if all(zero for _, zero in steps)
            else "along an earlier gradient"
        )
        yield RULE.finding(
            freezing_line(run, ids) or run.made[optimizer][0].site,
            f"{len(ids)} frozen parameter{'s' if len(ids) > 1 else ''} ({run.names(ids)}) changed in {len(steps)} "
            f"steps of {name}, {how}.",
            why=_WHY,
            advice="Set the gradients to None where the parameters are frozen, or leave the parameters out of "
            f"{name}.",
            fix=partial(without_gradients, names={run.name(number) for number in ids}),
            count=len(steps),
            evidence={"parameters": len(ids), "steps": len(steps)},
        )


def _zeroed(run: Run) -> Iterator[Finding]:
    """Yield parameters that a step changes although the script set their gradients to zero just before."""
    found: dict[Site, list[tuple[int, Ids]]] = defaultdict(list)
    written: dict[int, Site] = {}
    for event in run.events:
        if isinstance(event, Written) and event.target == "gradient":
            zero = event.op == "zero_" or event.factor == 0
            written.update(dict.fromkeys(event.parameters, event.site if zero and event.whole else ()))
        elif isinstance(event, Stepped):
            for site in set(written.values()) - {()}:
                ids = (
                    frozenset(number for number in written if written[number] == site)
                    & event.zero
                    & event.moved
                )
                if ids - event.frozen:
                    found[site].append((event.optimizer, ids))
            written.clear()
    for site, steps in found.items():
        ids = frozenset().union(*(moved for _, moved in steps))
        if len(steps) >= _STEPS:
            yield RULE.finding(
                site,
                f"The gradients of {run.names(ids)} are set to zero, but {run.optimizer(steps[-1][0])} still "
                f"changed {'it' if len(ids) == 1 else 'them'} in {len(steps)} steps, by momentum or weight "
                "decay.",
                why=_WHY,
                advice="Set the gradients to None, or freeze with requires_grad_(False) before the forward pass.",
                fix=none_instead,
                count=len(steps),
                evidence={"parameters": len(ids), "steps": len(steps)},
            )


RULE = Rule("GG505", "frozen-state-drift", "error", __doc__ or "", _judge)
