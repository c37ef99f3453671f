"""Training continues in evaluation mode, an evaluation runs in training mode, or dropout ignores the mode.

## What it does
Follows ``train()`` and ``eval()`` on modules that contain dropout or batch norm. Reports an ``eval()`` for an
evaluation if later steps train the same parameters, or a ``copy.deepcopy`` made in evaluation mode, without a
``train()`` in between. Reports an evaluation (a ``no_grad`` block that computes a loss or metric over several
batches) if it runs trained batch norms in training mode and training continues. Also reports ``F.dropout`` in a
module's method without ``training=self.training``, if the program calls ``eval()``.

## Why is this bad?
After the first validation, dropout is off, and batch norm uses its running statistics instead of updating them.
Training then continues with a different model. Without ``eval()``, the running statistics follow the evaluation's
data, and each result depends on the other samples of its batch. Without ``training=``, ``F.dropout`` also drops
units in evaluations.

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
norm that should keep its statistics. An evaluation in training mode is not reported if the model has dropout but no
batch norm, if no step follows the evaluation, or if its block neither compares values nor calls a function named
after a loss, score, accuracy, metric or error.

## Sources
``torch.nn.Module.train`` and ``eval`` in the documentation; "Locally disabling gradient computation" in
https://docs.pytorch.org/docs/stable/notes/autograd.html, on why ``no_grad`` and ``eval()`` are independent.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_modes import no_grad_around, without_gradients
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import is_function, last_name, own_nodes
from gradgate.checker.analysis._source import function_at, inside, spans, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Insert, passing
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.lifetime._evaluated_in_training import (
    at_the_end,
    block_at,
    evaluated_in_training,
    measures,
)
from gradgate.events import Backward, Frame, Gap, Ids, ModeSet, NoGradEntered, Site, Stepped

_SHORT = 4  # statements of a function that sets the mode, and does little else
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def _judge(run: Run) -> Iterator[Finding]:
    yield from _left_in_eval(run)
    if any(not event.training for event in run.of(ModeSet)) and run.windows:
        yield from _functional(run)
    yield from evaluated_in_training(run, RULE)


def _left_in_eval(run: Run) -> Iterator[Finding]:
    modes = _modes(run)
    affected: dict[int, list[int]] = defaultdict(list)  # eval(): steps made in evaluation mode
    before: dict[Ids, int] = {}  # set of parameters: its first step in training mode
    for window in run.windows:
        used = sum(len(each.atom) for each in window.fresh)
        causes: dict[int, int] = defaultdict(int)
        for each in window.fresh:
            cause = modes.get(each.backward, {}).get(each.atom)
            if cause is not None:
                causes[cause] += len(each.atom)
            elif each.backward >= 0:
                before.setdefault(each.atom, window.step)
        for cause, count in causes.items():
            event = run.events[cause]
            # The trained part of a copy may be its new head.
            most = not event.copied or 2 * count >= len(event.parameters)  # type: ignore[attr-defined]
            if 2 * count >= used and most:
                affected[cause].append(window.step)
    reported: dict[Frame, tuple[Site, list[int]]] = {}
    for cause, steps in affected.items():
        event = run.events[cause]
        atoms = run.atoms(event.parameters)  # type: ignore[attr-defined]
        earlier = any(before.get(atom, cause) < cause for atom in atoms)
        if event.copied:  # type: ignore[attr-defined]
            cause = _original(run, cause)
        if _evaluates(run, cause, steps[0], strict=not earlier):
            reported.setdefault(innermost(event.site), (event.site, []))[1].extend(steps)
    for site, steps in reported.values():
        if len(steps) < 2:
            continue
        again = any(isinstance(event, ModeSet) and event.training for event in run.events[steps[0] :])
        when = "" if again else "at the start of each epoch, or "
        yield RULE.finding(
            site,
            f"{len(steps)} of {len(run.windows)} steps are made in evaluation mode: eval() is called here, and "
            "nothing calls train() before the next step.",
            why="Dropout is off and batch norm uses its running statistics: training continues with a "
            "different model.",
            advice=f"Call {_model_at(innermost(site))}.train() {when}after each evaluation.",
            fix=_back_in_training,
            count=len(steps),
            evidence={"steps_in_eval": len(steps), "steps": len(run.windows)},
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


def _evaluates(run: Run, cause: int, step: int, *, strict: bool) -> bool:
    """Return whether the script evaluates around an ``eval()`` before it continues to train.

    ``strict``: no training came before the ``eval()``. Then the next statement must evaluate, or the function that
    calls ``eval()`` (itself or through a short helper) must evaluate and not train.
    """
    site = run.events[cause].site
    following = next((number for number, _ in run.numbered(Backward) if number > cause), step)
    blocks = [event.site for number, event in run.numbered(NoGradEntered) if cause < number < following]
    if any(map(no_grad_around, site)) or any(_evaluated_next(innermost(site), block) for block in blocks):
        return True
    if not strict:
        return bool(blocks)
    short = (
        len(inside(ast.stmt, function_at(innermost(site)))) <= _SHORT
    )  # it may only set the mode, for its caller
    own = {each[::2] for each in site[: 1 + short]} - {(each.file, "<module>") for each in site}
    evaluating = {(frame.file, frame.function) for block in blocks for frame in block}
    training = {
        (frame.file, frame.function) for number in (step, following) for frame in run.events[number].site
    }
    return bool(own & evaluating - training)


def _evaluated_next(line: Frame, block: Site) -> bool:
    """Return whether the statement after a line runs a given no_grad block that measures something."""
    at, scope = Statement.at(line), block_at(block)
    following = [node for node in at.block if node.lineno > at.line] if at is not None else []
    if not following or scope is None or not measures(scope.node):
        return False
    return any(frame.file == line.file and spans(following[0], frame.line) for frame in block)


def _functional(run: Run) -> Iterator[Finding]:
    """Find ``F.dropout`` without ``training=`` in methods of the files that train."""
    for file in {frame.file for event in run.of(Stepped) for frame in event.site}:
        for call in inside(ast.Call, *inside(ast.ClassDef, tree_of(file))):
            given = {keyword.arg for keyword in call.keywords}
            if _is_dropout(call.func) and len(call.args) < 3 and not given & {"training", None}:
                yield RULE.finding(
                    Frame(file, call.lineno, ""),
                    f"{ast.unparse(call.func)} ignores the mode and also drops units after eval().",
                    why="The training argument is True by default. train() and eval() change only modules.",
                    advice="Write training=self.training, or use torch.nn.Dropout.",
                    fix=_told_the_mode,
                )


def _is_dropout(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in _DROPOUTS:
        return False
    return last_name(function.value) in ("F", "functional")


def _back_in_training(at: Statement) -> Fix:
    """Switch back to training mode at the start of each epoch, or at the end of the evaluation function."""
    if method(at.node) != "eval":
        return ()
    model = owner(at.node)
    if at.loops:
        loop, root = at.loops[-1], model.partition(".")[0]
        names = [node for node in ast.walk(loop) if isinstance(node, ast.Name) and node.id == root]
        made_inside = any(isinstance(node.ctx, ast.Store) for node in names)
        single = len(at.loops) == 1 and not made_inside
        return (Insert(f"{model}.train()", before=loop.body[0].lineno),) if single else ()
    function = at.function
    nodes = (function, *own_nodes(function))
    if not any(isinstance(node, ast.For) or without_gradients(node) is not None for node in nodes):
        return ()  # the function only sets the mode: its caller evaluates
    if at.path[-2] is not function or not is_function(function):
        return ()
    # Restore the previous mode: the evaluated model may be a teacher, which is never trained.
    end = at_the_end(function, f"{model}.train(was_training)", model)
    return (Insert(f"was_training = {model}.training", before=at.line), *end) if end else ()


def _told_the_mode(at: Statement) -> Fix:
    calls = [call for call in at.calls("dropout") if _is_dropout(call.func)]
    return passing(at.line, calls, "training=self.training") if at.knows("self") else ()


RULE = Rule("GG602", "train-eval-mode", "warning", __doc__ or "", _judge)
