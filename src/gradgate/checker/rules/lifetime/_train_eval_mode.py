"""Training goes on in evaluation mode, or dropout does not know of the mode.

## What it does
Follows ``train()`` and ``eval()`` on modules that hold dropout or batch norm. Reports an ``eval()`` for an
evaluation after which steps are made with gradients of the same parameters, without a ``train()`` in between.
Reports as well ``F.dropout`` in a module's own method without ``training=self.training``, where the program calls
``eval()``.

## Why is this bad?
From the first validation on, dropout is off and batch norm uses and keeps its running statistics: another model is
trained than before. Functional dropout, the other way round, drops units in every evaluation.

## Example
    model.train()
    for epoch in range(epochs):
        for x, y in loader:
            step(model, x, y)
        model.eval()                     # and from the second epoch on, too
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
A model that is put into evaluation mode on purpose, with nothing evaluated around it, is left alone, and so are
single layers (a batch norm that is to keep its statistics).

## Sources
``torch.nn.Module.train`` and ``eval`` in the documentation; "Locally disabling gradient computation" in
https://docs.pytorch.org/docs/stable/notes/autograd.html, on why the modes are apart.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import tree_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, Gap, Ids, ModeSet, NoGradEntered, Site, Stepped

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def _judge(run: Run) -> Iterator[Finding]:
    yield from _left_in_eval(run)
    if any(not event.training for event in run.of(ModeSet)) and run.windows:
        yield from _functional(run)


def _left_in_eval(run: Run) -> Iterator[Finding]:
    modes = _modes(run)
    affected: dict[int, list[int]] = defaultdict(list)  # eval(): steps made in its mode
    before: dict[Ids, int] = {}  # atoms: their first step in training mode
    for window in run.windows:
        used = sum(len(one.atom) for one in window.fresh)
        causes: dict[int, int] = defaultdict(int)
        for one in window.fresh:
            cause = modes.get(one.backward, {}).get(one.atom)
            if cause is not None:
                causes[cause] += len(one.atom)
            elif one.backward >= 0:
                before.setdefault(one.atom, window.step)
        for cause, count in causes.items():
            if 2 * count >= used:
                affected[cause].append(window.step)
    reported: dict[Frame, tuple[Site, list[int]]] = {}
    for cause, steps in affected.items():
        event = run.events[cause]
        atoms = run.atoms(event.parameters)  # type: ignore[attr-defined]
        earlier = any(before.get(atom, cause) < cause for atom in atoms)
        if _evaluates(run, cause, steps[0], strict=not earlier):
            reported.setdefault(innermost(event.site), (event.site, []))[1].extend(steps)
    for site, steps in reported.values():
        if len(steps) < 2:
            continue
        yield RULE.finding(
            site,
            f"{len(steps)} of {len(run.windows)} steps are made in evaluation mode: eval() is called here, and "
            "nothing calls train() afterwards.",
            why="Dropout is off and batch norm uses its running statistics: another model is trained than before.",
            advice="Call model.train() at the start of each epoch, or after each evaluation.",
            count=len(steps),
            evidence={"steps_in_eval": len(steps), "steps": len(run.windows)},
        )


def _modes(run: Run) -> dict[int, dict[Ids, int]]:
    """Return for each backward call which of the atoms it reaches are in evaluation mode, and since which event."""
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


def _evaluates(run: Run, cause: int, step: int, *, strict: bool) -> bool:
    """Say whether something is evaluated around an eval(), before training goes on.

    ``strict``: there was no training before it. Then its own function must be the one that evaluates, and must
    not be the one that trains.
    """
    last = max((n for n, event in run.numbered(Backward, Stepped) if n < cause), default=-1)
    following = next((n for n, _ in run.numbered(Backward) if n > cause), step)
    blocks = [event.site for n, event in run.numbered(NoGradEntered) if last < n < following]
    if not strict:
        return bool(blocks)
    site = run.events[cause].site
    own = {(frame.file, frame.function) for frame in site[:1]} - {(frame.file, "<module>") for frame in site}
    evaluating = {(frame.file, frame.function) for block in blocks for frame in block}
    training = {(frame.file, frame.function) for n in (step, following) for frame in run.events[n].site}
    return bool(own & evaluating) and not own & training


def _functional(run: Run) -> Iterator[Finding]:
    """Find ``F.dropout`` without its mode in methods of the files that train."""
    for file in {frame.file for event in run.of(Stepped) for frame in event.site}:
        tree = tree_of(file)
        classes = (
            [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)] if tree is not None else []
        )
        for call in (node for one in classes for node in ast.walk(one) if isinstance(node, ast.Call)):
            if _is_functional(call.func) and len(call.args) < 3 and not _keywords(call) & {"training", None}:
                yield RULE.finding(
                    Frame(file, call.lineno, ""),
                    f"{ast.unparse(call.func)} is not told the mode: it drops units after eval(), too.",
                    why="Its training argument is True by default; modules know their mode, functions do not.",
                    advice="Write training=self.training, or use torch.nn.Dropout.",
                )


def _is_functional(function: ast.expr) -> bool:
    if not (isinstance(function, ast.Attribute) and function.attr in _DROPOUTS):
        return False
    owner = function.value
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return name in ("F", "functional")


def _keywords(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}


RULE = Rule("GG602", "train-eval-mode", "warning", __doc__ or "", _judge)
