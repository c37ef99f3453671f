"""A step uses gradients that an earlier step already used.

## What it does
Follows each gradient contribution, parameter by parameter. Reports steps whose new gradients were added to
gradients that the same optimizer has already used. The script cleared no gradients, or only those of some
parameters, or those of the wrong parameters. Also reports:

- a model whose gradients another model's parameters use, and that is never cleared;
- gradients of another model that are added by hand (``shared.grad += worker.grad``) and never cleared;
- steps that use exactly the gradients of the step before, although other backward calls came in between;
- tensors that a loop updates by hand from gradients that nothing clears: parameters without an optimizer
  (``p -= lr * p.grad``), or the input of an adversarial attack (``delta.data += lr * delta.grad.sign()``).

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
weights that are added to the gradients before the perturbation (sharpness-aware minimization). A closure that
calls backward in a loop is reported from its optimizer's third step on. Gradients of another model that a new
assignment adds (``p.grad = p.grad + g``) are not reported.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._queries import joined, loss_of, own_losses, repeats, windows_of, with_line_of
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import block_of, function_at, inside, loops_around, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.accumulation._accumulation_window import surplus_steps
from gradgate.checker.rules.clearing._by_hand import cleared_after, never_cleared
from gradgate.checker.rules.clearing._used_again import used_again
from gradgate.events import Backward, Cleared, Frame, Ids, Site, Stepped

_LEAST = 3  # steps whose gradients were assigned from another model
_WHY = "Every step applies the gradients of all earlier steps again, and the update keeps growing."
_NOW_AND_THEN = (
    "Until the gradients are cleared, each step applies those of earlier steps again, so the updates grow."
)


def _judge(run: Run) -> Iterator[Finding]:
    yield from _shared_gradients(run)
    yield from used_again(run, RULE, why=_WHY)
    yield from _stepped_by_hand(run)
    yield from _closures(run)
    others = {window.optimizer for window in run.windows if run.repeats_closure(window)}
    others |= {optimizer for optimizer, _, _ in surplus_steps(run)}
    for optimizer in run.stepping.keys() - others:
        windows = [window for window in windows_of(run, optimizer) if repeats(run, window)]
        if len(windows) < 2 or len(windows) * 8 < run.watched(optimizer):
            continue
        repeated = union(repeats(run, window) for window in windows)
        most = max(len({part.backward for part in (*w.fresh, *w.stale)}) for w in windows)
        where, cleared = _line(run, windows, repeated)
        later = (window for window in windows_of(run, optimizer) if window.step > windows[0].step)
        watched = [window for window in later if run.stepped(window.step).seen]
        name, another = run.optimizer(optimizer), _left_by_another(run, windows[-1])
        yield RULE.finding(
            where,
            f"{len(windows)} of {run.steps_of(optimizer)} use gradients of "
            f"{run.names(repeated)} that earlier steps already used: one step uses those of up to {most} backward "
            f"calls{cleared}.",
            why=_WHY if all(repeats(run, window) for window in watched) else _NOW_AND_THEN,
            advice=f"Call {name}.zero_grad() before "
            + ("its own backward()." if another else "each window's first backward()."),
            fix=partial(_cleared_before if another else _cleared, name=name),
            count=len(windows),
            evidence={"most_backwards_in_a_step": most, "parameters": len(repeated)},
        )


def _shared_gradients(run: Run) -> Iterator[Finding]:
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
        lent = [each for each in sources if _is_lent(run, each, receivers, windows)]
        if not lent:
            continue
        source = union(lent)
        root = run.parameters[min(source)].root
        calls = run.calls_reaching(source)
        clearing = [event.site for event in run.of(Cleared) if event.site and event.parameters & receivers]
        where = clearing[-1] if clearing else calls[0].site
        computed = innermost(calls[0].site)
        own, around = f"self.{root.rpartition('.')[2]}", ast.unparse(function_at(computed) or ast.Pass())
        listed = re.search(r"([\w.]+)\.parameters\(", around)
        named = (own if own in around else root) if root else listed[1] if listed else ""
        clear = f"{named}.zero_grad()" if named else "set the .grad of each of these parameters to None"
        yield RULE.finding(
            where,
            f"Nothing clears the gradients of {run.names(source)}. They are assigned to {run.names(receivers)} for "
            f"{len(windows)} steps, so each backward() adds to the gradients of all earlier steps.",
            why=_WHY,
            advice=f"Also clear these gradients, before the backward() of line {computed.line} computes them: "
            f"{clear}.",
            count=len(windows),
            evidence={"steps": len(windows), "parameters": len(source)},
            about=source | receivers,
        )


def _is_lent(run: Run, source: Ids, receivers: Ids, windows: list[StepWindow]) -> bool:
    """Return whether a model has parameters of the receivers' shapes and provides gradients for several windows."""
    steps = [window.step for window in windows]
    calls = (number for number, event in run.numbered(Backward) if event.reached & source)
    shapes = [sorted(run.parameters[number].shape for number in ids) for ids in (source, receivers)]
    return shapes[0] == shapes[1] and len({bisect(steps, number) for number in calls}) >= _LEAST


def _stepped_by_hand(run: Run) -> Iterator[Finding]:
    for update in never_cleared(run):
        cleared = " and ".join(f"{name}.grad = None" for name in update.names)
        yield RULE.finding(
            update.line,
            f"Nothing clears the gradients between these updates by hand: each of {update.most} backward calls "
            "adds to the gradients of all earlier calls.",
            why=_WHY,
            advice=f"Clear after the update: {cleared}.",
            fix=partial(cleared_after, names=update.names),
            count=update.most,
            evidence={"backwards": update.most, "parameters": len(update.ids)},
            about=update.ids,
        )


def _closures(run: Run) -> Iterator[Finding]:
    """Report closures whose gradients add up because one step calls them several times."""
    found: dict[tuple[int, Site], list[int]] = defaultdict(list)
    surely: set[tuple[int, Site]] = set()
    steps: dict[int, Site] = {}
    for window in filter(run.repeats_closure, run.windows):
        step = steps[window.optimizer] = run.events[window.step].site
        for site, calls in run.by_line(window.micro).items():
            closure = [frame for frame, line in with_line_of(site, step) if line is None]
            single = closure and not any(map(loops_around, closure))  # else the calls are micro-batches
            sure = single and len(calls) >= _LEAST
            if all(run.backward(number).closure for number in calls) and (sure or repeats(run, window)):
                found[window.optimizer, site].append(len(calls))
                surely |= {(window.optimizer, site)} if sure else set()
    for (optimizer, site), calls_of_steps in found.items():
        if len(calls_of_steps) < 2 and (optimizer, site) not in surely:
            continue
        name = run.optimizer(optimizer)
        yield RULE.finding(
            site,
            f"One step of {name} adds up the gradients of up to {max(calls_of_steps)} backward calls in its "
            "closure, and nothing in the closure clears the gradients of earlier calls.",
            why="The optimizer compares gradients of single calls, but gets running sums.",
            advice=f"Call {name}.zero_grad() in the closure, before backward().",
            fix=partial(_cleared_in_closure, step=innermost(steps[optimizer])),
            count=len(calls_of_steps),
            evidence={"most_backwards_in_a_step": max(calls_of_steps)},
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


def _left_by_another(run: Run, window: StepWindow) -> bool:
    """Return whether a step at another line used the gradients, or another optimizer's loss added to them."""
    steps = [max(step for step in each.consumed if step < window.step) for each in window.stale]
    own = own_losses(run, window.optimizer)
    mine = {loss_of(run, number) in own for number in window.micro}
    return len(mine) > 1 or bool(steps and run.events[max(steps)].site != run.events[window.step].site)


# The fix: clear, using the optimizer's name at that line


def _named(step: ast.stmt, name: str) -> str:
    """Return the name of the optimizer in its step, or ""."""
    found = re.search(rf"[\w.]*\b{re.escape(name.removeprefix('self.'))}\b", ast.unparse(step))
    return found[0] if found else ""


def _cleared_before(at: Statement, *, name: str) -> Fix:
    """Clear before the only backward call since the last step."""
    steps = [step for step in at.beside("step") if step.lineno <= at.line]
    if not steps or steps[-1].lineno != at.line or not _named(steps[-1], name):
        return ()
    since = steps[-2].lineno if len(steps) > 1 else 0
    between = [node for node in at.block if since < node.lineno < at.line]
    calls = [node for node in between if any(called(call) == "backward" for call in inside(ast.Call, node))]
    if len(calls) != 1 or method(calls[0]) != "backward":
        return ()
    return (Insert(f"{_named(steps[-1], name)}.zero_grad()", before=calls[0].lineno),)


def _cleared(at: Statement, *, name: str) -> Fix:
    """Clear after the step, or after an ``if`` that skips the step if gradients aren't finite or are too large."""
    steps = [(step, _named(step, name)) for step in at.beside("step") if _named(step, name)]
    if not steps:
        return ()
    (last, named), around = steps[-1], at.path[-2]
    skips = isinstance(around, ast.If) and re.fullmatch(
        "[^%]*(finite|nan|isinf|norm)[^%]*", ast.unparse(around.test)
    )
    after = around if skips and isinstance(around, ast.If) and not at.beside("backward") else last
    block = at.block if after is last else block_of(at.path[-3], after)
    if any(ast.unparse(call.func) == f"{named}.zero_grad" for call in inside(ast.Call, *block)):
        return ()  # a condition decides
    return (Insert(f"{named}.zero_grad()", after=after.lineno),)


def _cleared_in_closure(at: Statement, *, step: Frame) -> Fix:
    """Clear at the start of the closure, if the name is visible there."""
    call, function = Statement.at(step), at.function
    around = [part.name for part in at.path if isinstance(part, ast.FunctionDef)]
    if call is None or not isinstance(function, ast.FunctionDef) or at.node not in function.body:
        return ()
    in_class = owner(call.node).startswith("self.") and "self" in [arg.arg for arg in function.args.args]
    if method(call.node) != "step" or not (in_class or step.function in ("<module>", *around)):
        return ()
    return (Insert(f"{owner(call.node)}.zero_grad()", before=function.body[0].lineno),)


RULE = Rule("GG201", "missing-zero-grad", "error", __doc__ or "", _judge)
