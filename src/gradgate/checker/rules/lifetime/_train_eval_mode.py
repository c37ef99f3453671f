"""Training continues in evaluation mode.

## What it does
Follows ``train()`` and ``eval()`` on modules that contain dropout or batch norm. Reports an ``eval()`` for an
evaluation if later steps train the same parameters, or a ``copy.deepcopy`` made in evaluation mode, without a
``train()`` in between. If no step came before the ``eval()``, it is a note: batch norms may keep their statistics
on purpose.

## Why is this bad?
After the first validation, dropout is off, and batch norm uses its running statistics instead of updating them.
Training then continues with a different model.

## Example
    model.train()
    for epoch in range(epochs):
        for x, y in loader:
            step(model, x, y)
        model.eval()                     # the second epoch still trains in this mode
        with torch.no_grad():
            validate(model)

## Use instead
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            step(model, x, y)
        model.eval()
        ...

## Known limits
An ``eval()`` without an evaluation after it is not reported. Nor is ``eval()`` on a single layer, such as a batch
norm that should keep its statistics. Not found: an evaluation that runs in training mode, and ``F.dropout`` without
``training=``.

## Sources
``torch.nn.Module.train`` and ``eval`` in the documentation; "Locally disabling gradient computation" in
https://docs.pytorch.org/docs/stable/notes/autograd.html, on why ``no_grad`` and ``eval()`` are independent.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import lifetime as texts
from gradgate.events import Backward, Frame, Gap, Ids, ModeSet, NoGradEntered, Site

_LEAST = 2  # steps


def _judge(run: Run) -> Iterator[Finding]:
    modes = _modes(run)
    affected: dict[int, list[int]] = defaultdict(list)  # eval(): steps made in evaluation mode
    trained: set[int] = set()  # eval() calls for parameters that an earlier step trained in training mode
    before: Ids = frozenset()
    for window in run.windows:
        causes: Counter[int] = Counter()
        for part in window.fresh:
            cause = modes.get(part.backward, {}).get(part.atom)
            if cause is not None:
                causes[cause] += len(part.atom)
        used = sum(len(part.atom) for part in window.fresh)
        for cause, count in causes.items():
            event = run.events[cause]
            # The trained part of a copy may be its new head.
            most = not event.copied or 2 * count >= len(event.parameters)  # type: ignore[attr-defined]
            if 2 * count >= used and most:
                affected[cause].append(window.step)
                trained |= {cause} if before & event.parameters else set()  # type: ignore[attr-defined]
        in_training = [part.atom for part in window.fresh if part.atom not in modes.get(part.backward, {})]
        before = before.union(*in_training)
    reported: dict[Frame, tuple[Site, list[int], bool]] = {}
    for cause, steps in affected.items():
        event = run.events[cause]
        original = _original(run, cause) if event.copied else cause  # type: ignore[attr-defined]
        if _evaluates(run, original):
            known = reported.setdefault(innermost(event.site), (event.site, [], cause in trained))
            known[1].extend(steps)
    for site, steps, sure in reported.values():
        if len(steps) >= _LEAST:
            yield RULE.say(
                site,
                texts.LEFT_IN_EVAL,
                severity=None if sure else "info",
                count=len(steps),
                steps_in_eval=len(steps),
                steps=len(run.windows),
                model=_model_at(innermost(site)),
            )


def _model_at(line: Frame) -> str:
    """Return the module whose mode a line sets, as the line spells it; "model" if the source can't be read."""
    at = Statement.at(line)
    calls = [*at.calls("eval"), *at.calls("train")] if at is not None else []
    modules = (call.func.value for call in calls if isinstance(call.func, ast.Attribute))
    return next(map(ast.unparse, modules), "model")


def _original(run: Run, copied: int) -> int:
    """Return the ``eval()`` call that put the original of a copied module in evaluation mode."""
    site = run.events[copied].site
    earlier = [(number, event) for number, event in run.numbered(ModeSet) if number < copied]
    return max((n for n, event in earlier if event.site == site and not event.copied), default=copied)


def _modes(run: Run) -> dict[int, dict[Ids, int]]:
    """Return, for each backward call, the parameter sets in evaluation mode, with the event of their ``eval()``."""
    since: dict[Ids, int] = {}
    modes: dict[int, dict[Ids, int]] = {}
    for number, event in enumerate(run.events):
        if isinstance(event, ModeSet):
            for atom in run.atoms(event.parameters):
                if event.training:
                    since.pop(atom, None)
                elif event.depends:
                    since.setdefault(atom, number)
        elif isinstance(event, Gap):
            since.clear()
        elif isinstance(event, Backward) and since:
            modes[number] = {atom: since[atom] for atom in run.atoms(event.reached) if atom in since}
    return modes


def _evaluates(run: Run, cause: int) -> bool:
    """Return whether gradients are turned off, or were just turned off, around an ``eval()``."""
    ends = [
        number
        for number, event in run.numbered(Backward, ModeSet)
        if not isinstance(event, ModeSet) or event.training
    ]
    first = max((number for number in ends if number < cause), default=-1)
    last = min((number for number in ends if number > cause), default=len(run.events))
    return any(first < number < last for number, _ in run.numbered(NoGradEntered))


RULE = Rule("GG602", "train-eval-mode", "warning", __doc__ or "", _judge)
