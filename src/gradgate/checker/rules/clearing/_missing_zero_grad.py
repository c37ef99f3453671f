"""A step uses gradients that an earlier step already used.

## What it does
Follows each gradient contribution, parameter by parameter. Reports steps whose new gradients were added to
gradients that the same optimizer has already used. The script cleared no gradients, or only those of some
parameters, or those of the wrong parameters. Also reports:

- a model whose gradients another model's parameters use, and that is never cleared;
- closures that an optimizer calls several times in a step, and that clear nothing;
- steps that use exactly the gradients of the step before, although other backward calls came in between.

## Why is this bad?
Each step applies the gradients of all earlier steps again. The gradient grows with the number of steps, although
the loss may fall for a while.

## Example
    for x, y in loader:
        loss_fn(model(x), y).backward()
        optimizer.step()

## Use instead
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()

## Known limits
These gradients are assumed to be intended: gradients that are scaled or written by hand between two steps (decay,
momentum by hand), gradients that are copied loss by loss and combined by hand (PCGrad), and gradients at perturbed
weights that are added to the gradients before the perturbation (sharpness-aware minimization). Tensors that no
optimizer holds (``w -= lr * w.grad``) and gradients of another model that are added by hand
(``shared.grad += worker.grad``) are not followed.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._queries import joined, loss_of, own_losses, repeats, windows_of
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import inside, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Insert, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.accumulation._accumulation_window import surplus_steps
from gradgate.checker.rules.texts import clearing as texts
from gradgate.events import Backward, Cleared, Frame, Gap, Ids, Site, Stepped, Written

_LEAST = 3  # steps, or backward calls of one closure: two may be an accident of the run's start or end


def _judge(run: Run) -> Iterator[Finding]:
    yield from _lent(run)
    yield from _closures(run)
    others = {window.optimizer for window in run.windows if run.repeats_closure(window)}
    others |= {optimizer for optimizer, _, _ in surplus_steps(run)}
    for optimizer in run.stepping:
        yield from _unchanged(run, optimizer)
        if optimizer not in others:
            yield from _used_again(run, optimizer)


def _used_again(run: Run, optimizer: int) -> Iterator[Finding]:
    windows = [window for window in windows_of(run, optimizer) if repeats(run, window)]
    # An eighth: a clearing at the end of each epoch, or under a condition, may leave out only some steps.
    if len(windows) < 2 or len(windows) * 8 < run.watched(optimizer):
        return
    repeated = union(repeats(run, window) for window in windows)
    where, cleared = _line(run, windows, repeated)
    own = own_losses(run, optimizer)
    mixed = len({loss_of(run, number) in own for number in windows[-1].micro}) > 1
    yield RULE.say(
        where,
        texts.USED_AGAIN,
        fix=()
        if mixed
        or 2 * len(windows) < run.watched(optimizer)  # some steps clear: where, this one does not tell
        else partial(_cleared_after, name=run.optimizer(optimizer)),
        count=len(windows),
        about=repeated,
        times=len(windows),
        steps=run.steps_of(optimizer),
        names=run.names(repeated),
        most_backwards_in_a_step=max(len({part.backward for part in (*w.fresh, *w.stale)}) for w in windows),
        cleared=cleared,
        optimizer=run.optimizer(optimizer),
        before="its own backward()" if mixed else "each window's first backward()",
        parameters=len(repeated),
    )


def _line(run: Run, windows: list[StepWindow], repeated: Ids) -> tuple[Frame, str]:
    """Return the line to change: a call that lacks its parentheses or clears other parameters, or else the step."""
    step = run.events[windows[0].step].site
    for frame in step:
        for node in inside(ast.Expr, tree_of(frame.file)):
            if isinstance(node.value, ast.Attribute) and node.value.attr == "zero_grad":
                line = frame._replace(line=node.lineno)
                return line, "; zero_grad lacks its parentheses here and is not called"
    own = own_losses(run, windows[-1].optimizer)
    micro = [number for number in windows[-1].micro if run.backward(number).reached & repeated]
    micro = [number for number in micro if loss_of(run, number) in own] or micro
    for event in reversed(run.events[max(windows[-2].step, 0) + 1 : micro[0]] if micro else ()):
        if isinstance(event, (Backward, Stepped)):
            break  # an earlier clearing belongs to another loss
        if isinstance(event, Cleared) and event.site and not (event.by_hand or event.parameters & repeated):
            return innermost(event.site), "; this line clears other parameters"
    return innermost(step), ""


def _unchanged(run: Run, optimizer: int) -> Iterator[Finding]:
    """Report an optimizer most of whose steps use the gradients of the step before, without any change."""
    again = [
        each for before, each in pairwise(windows_of(run, optimizer)) if _is_unchanged(run, before, each)
    ]
    if len(again) < _LEAST or 2 * len(again) < run.watched(optimizer):
        return
    used = union(run.stepped(window.step).used for window in again)
    calls = [event for event in run.events[again[0].step : again[-1].step] if isinstance(event, Backward)]
    reached = union(event.reached for event in run.of(Backward))
    # Else a model was replaced, and its optimizer steps on.
    if not used & reached or all(event.reached <= run.owned for event in calls):
        yield RULE.say(
            run.events[again[0].step].site,
            texts.UNCHANGED,
            fix=partial(_cleared_after, name=run.optimizer(optimizer)),
            count=len(again),
            about=used,
            times=len(again),
            steps=run.steps_of(optimizer),
            names=run.names(used),
            backwards=len(calls),
            optimizer=run.optimizer(optimizer),
        )


def _is_unchanged(run: Run, before: StepWindow, window: StepWindow) -> bool:
    previous, step = run.stepped(before.step), run.stepped(window.step)
    between = run.events[before.step + 1 : window.step]
    changed = any(
        isinstance(event, Gap)
        or (isinstance(event, Cleared) and event.full & step.used)
        or (isinstance(event, Written) and event.target == "gradient" and event.parameters & step.used)
        for event in between
    )
    calls = any(isinstance(event, Backward) and event.reached for event in between)
    norms = [{number: norm for number, norm, *_ in each.norms if norm} for each in (previous, step)]
    old = bool(window.stale) and not window.fresh and bool(step.moved & step.used)
    return old and calls and not changed and previous.seen and step.seen and norms[0] == norms[1] != {}


def _lent(run: Run) -> Iterator[Finding]:
    """Report a model whose gradients are assigned to another model's parameters but never cleared.

    The optimizer's ``zero_grad`` sets only the other model's ``.grad`` to None.
    """
    reached = union(event.reached for event in run.of(Backward))
    given = grouped(
        (window.optimizer, window)
        for window in run.windows
        if any(part.backward < 0 for part in window.fresh) and not window.parameters & reached
    )
    changed = [*run.of(Cleared), *run.written("gradient")]
    free = reached - run.owned - union(event.parameters for event in changed)
    models = grouped((run.parameters[number].root, number) for number in free)
    # Several workers' models may have the same name. Their losses tell them apart.
    sources = {
        *map(frozenset, models.values()),
        *joined({event.reached & free for event in run.of(Backward)}),
    }
    for windows in given.values():
        receivers = union(window.parameters for window in windows)
        lent = [source for source in sources if _is_lent(run, source, receivers, windows)]
        if lent:
            source, calls = union(lent), run.calls_reaching(union(lent))
            clearing = [
                event.site for event in run.of(Cleared) if event.site and event.parameters & receivers
            ]
            root = run.parameters[min(source)].root
            yield RULE.say(
                clearing[-1] if clearing else calls[0].site,
                texts.LENT,
                count=len(windows),
                about=source | receivers,
                names=run.names(source),
                receivers=run.names(receivers),
                steps=len(windows),
                line=innermost(calls[0].site).line,
                clear=f"{root}.zero_grad()" if root else "set the .grad of each of these parameters to None",
            )


def _is_lent(run: Run, source: Ids, receivers: Ids, windows: list[StepWindow]) -> bool:
    """Return whether a model has parameters of the receivers' shapes and provides gradients for several windows."""
    steps = [window.step for window in windows]
    calls = (number for number, event in run.numbered(Backward) if event.reached & source)
    shapes = [sorted(run.parameters[number].shape for number in ids) for ids in (source, receivers)]
    return shapes[0] == shapes[1] and len({bisect(steps, number) for number in calls}) >= _LEAST


def _closures(run: Run) -> Iterator[Finding]:
    """Report closures whose gradients add up because one step calls them several times.

    LBFGS evaluates the closure several times. Another optimizer does so once, and the calls may be micro-batches.
    """
    found: dict[tuple[int, Site], list[int]] = defaultdict(list)
    surely: set[tuple[int, Site]] = set()
    for window in filter(run.repeats_closure, run.windows):
        before = max((step for step in run.steps(window.optimizer) if step < window.step), default=0)
        cleared = any(isinstance(event, Cleared) for event in run.events[before : window.step])
        searches = not cleared and run.made[window.optimizer][0].kind == "LBFGS"
        for site, calls in run.by_line(window.micro).items():
            sure = searches and len(calls) >= _LEAST
            if all(run.backward(number).closure for number in calls) and (sure or repeats(run, window)):
                found[window.optimizer, site].append(len(calls))
                surely |= {(window.optimizer, site)} if sure else set()
    for (optimizer, site), calls_of_steps in found.items():
        if len(calls_of_steps) >= 2 or (optimizer, site) in surely:
            yield RULE.say(
                site,
                texts.CLOSURE,
                count=len(calls_of_steps),
                optimizer=run.optimizer(optimizer),
                most_backwards_in_a_step=max(calls_of_steps),
            )


def _cleared_after(at: Statement, *, name: str) -> Fix:
    """Clear after the step, unless a condition may skip both, or with another clearing call."""
    clear = f"{owner(at.node)}.zero_grad"
    if method(at.node) == "step" and not (isinstance(at.path[-2], ast.If) and not at.beside("backward")):
        return (Insert(f"{clear}()", after=at.line),)
    if method(at.node) in ("zero_grad", "step"):
        known = method(at.node) == "zero_grad" and at.knows(name.partition(".")[0])
        return (Insert(f"{name}.zero_grad()", after=at.line),) if known else ()
    return (
        (Replace(at.line, ast.unparse(at.node), f"{ast.unparse(at.node)}()"),)
        if isinstance(at.node, ast.Expr)
        else ()
    )


RULE = Rule("GG201", "missing-zero-grad", "error", __doc__ or "", _judge)
