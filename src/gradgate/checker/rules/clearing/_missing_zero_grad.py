"""A step uses gradients that an earlier step already used.

## What it does
Follows each gradient contribution, parameter by parameter. Reports steps whose new gradients were added to
gradients that the same optimizer has already used. Either nothing was cleared, or only some of the parameters, or
the wrong parameters. Also reports:

- a model that provides the gradients for another model's parameters and is never cleared;
- a loop without an optimizer that updates parameters by hand (``p -= lr * p.grad``) and never clears gradients.

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
calls backward in a loop is reported from its optimizer's third step on.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called, last_name
from gradgate.checker.analysis._source import loops_around, nodes_of, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.accumulation._surplus_steps import surplus_steps
from gradgate.checker.rules.clearing._late_losses import lines_of_own_losses
from gradgate.events import Backward, Cleared, Frame, Ids, ModeSet, Site, Stepped, Written

_LEAST = 3  # steps whose gradients were assigned from another model
_WHY = "Every step applies the gradients of all earlier steps again, and the update keeps growing."


def _judge(run: Run) -> Iterator[Finding]:
    yield from _shared_gradients(run)
    yield from _stepped_by_hand(run)
    yield from _closures(run)
    by_optimizer: dict[int, list[StepWindow]] = {}
    with_closures = {window.optimizer for window in run.windows if run.repeats_closure(window)}
    surplus = {each.optimizer for each in surplus_steps(run)}
    for window in run.windows:
        if window.optimizer not in with_closures | surplus and repeats(run, window):
            by_optimizer.setdefault(window.optimizer, []).append(window)
    for optimizer, windows in by_optimizer.items():
        if len(windows) < 2 or len(windows) * 8 < run.stepping[optimizer]:
            continue
        repeated = frozenset().union(*(repeats(run, window) for window in windows))
        most = max(len({contribution.backward for contribution in (*w.fresh, *w.stale)}) for w in windows)
        step = run.events[windows[0].step].site
        where, cleared = _line(run, windows, repeated, step)
        name, another = run.optimizer(optimizer), _left_by_another(run, windows[-1])
        yield RULE.finding(
            where,
            f"{len(windows)} of {run.stepping[optimizer]} steps of {name} use gradients of "
            f"{run.names(repeated)} that earlier steps already used: one step uses up to {most} backward calls"
            + (f"; {cleared}." if cleared else "."),
            why=_WHY,
            advice=f"Call {name}.zero_grad() before "
            + ("its own backward()." if another else "each window's first backward()."),
            fix=functools.partial(_cleared_before if another else _cleared, name=name),
            count=len(windows),
            evidence={"most_backwards_in_a_step": most, "parameters": len(repeated)},
        )


def _shared_gradients(run: Run) -> Iterator[Finding]:
    """Report a model whose gradients are assigned to another model's parameters but never cleared.

    The optimizer's ``zero_grad`` sets only the other model's ``.grad`` to None.
    """
    reached = frozenset[int]().union(*{event.reached for event in run.of(Backward)})
    given = [
        window
        for window in run.windows
        if any(each.backward < 0 for each in window.fresh) and not window.parameters & reached
    ]
    sources = reached - run.owned
    cleared = [event.parameters for event in run.of(Cleared)]
    cleared += [event.parameters for event in run.of(Written) if event.target == "gradient"]
    sources -= frozenset[int]().union(*cleared)
    models: dict[str, set[int]] = defaultdict(set)
    for number in sources:
        models[run.parameters[number].root].add(number)
    for optimizer in {window.optimizer for window in given}:
        windows = [window for window in given if window.optimizer == optimizer]
        receivers = frozenset[int]().union(*(window.parameters for window in windows))
        clearing = [event.site for event in run.of(Cleared) if event.site and event.parameters & receivers]
        for root, source in models.items():
            name = root or run.name(min(source))
            calls = [event for event in run.of(Backward) if event.reached & source]
            if min(len(windows), len(calls)) < _LEAST or _shapes(run, source) != _shapes(run, receivers):
                continue
            yield RULE.finding(
                clearing[-1] if clearing else calls[0].site,
                f"Nothing clears the gradients of {run.names(source)}. They are assigned to {run.names(receivers)} "
                f"for {len(windows)} steps, so each backward() adds to the gradients of all earlier steps.",
                why=_WHY,
                advice=f"Also clear the gradients where they are computed: {name}.zero_grad().",
                count=len(windows),
                evidence={"steps": len(windows), "parameters": len(source)},
                about=source | receivers,
            )


def _stepped_by_hand(run: Run) -> Iterator[Finding]:
    """Report a loop without an optimizer that updates parameters by hand, in a run that never clears a gradient."""
    if run.made or run.of(Stepped, Cleared) or any(event.target == "gradient" for event in run.of(Written)):
        return
    evaluated = frozenset[int]().union(*(event.parameters for event in run.of(ModeSet) if not event.training))
    lines: dict[Frame, Counter[int]] = defaultdict(Counter)
    for event in run.of(Backward):
        lines[innermost(event.site)].update(event.reached - evaluated)
    for frame, times in lines.items():
        ids = frozenset(number for number, count in times.items() if count > _LEAST)
        update = _update_in_loop(frame) if ids else None
        if update is not None:
            yield RULE.finding(
                update,
                "Nothing clears the gradients between these updates by hand: each of "
                f"{max(times.values())} backward calls adds to the gradients of all earlier calls.",
                why=_WHY,
                advice="Clear after the update: p.grad = None, for each parameter.",
                count=max(times.values()),
                evidence={"backwards": max(times.values()), "parameters": len(ids)},
                about=ids,
            )


def _update_in_loop(backward: Frame) -> Frame | None:
    """Return the line that subtracts a gradient in place, in a backward call's loop or a function called there."""
    for loop in loops_around(backward)[:1]:
        called = {last_name(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call)}
        functions = [node for node in nodes_of([backward.file]) if getattr(node, "name", "") in called]
        for node in (inner for part in (loop, *functions) for inner in ast.walk(part)):
            if not isinstance(node, (ast.AugAssign, ast.Expr)):
                continue
            subtracts = isinstance(getattr(node, "op", None), ast.Sub) or method(node) in ("add_", "sub_")
            text = ast.unparse(node.value) if subtracts else ""
            if ".grad" in text and ".sign" not in text:  # .sign: an adversarial attack on the input
                return Frame(backward.file, node.lineno, backward.function)
    return None


def _closures(run: Run) -> Iterator[Finding]:
    """Report closures whose gradients add up because one step calls them several times."""
    found: dict[tuple[int, Site], list[int]] = defaultdict(list)
    surely: set[tuple[int, Site]] = set()
    steps: dict[int, Site] = {}
    for window in run.windows:
        if not run.repeats_closure(window):
            continue
        steps[window.optimizer] = run.events[window.step].site
        step, again = {frame[::2] for frame in steps[window.optimizer]}, bool(repeats(run, window))
        for site, calls in run.by_line(window.micro).items():
            inside = [frame for frame in site if frame[::2] not in step]
            once = inside and not any(map(loops_around, inside))  # else the calls are micro-batches
            if not all(run.backward(number).closure for number in calls):
                continue
            if once and len(calls) >= _LEAST:
                surely.add((window.optimizer, site))
            elif not again:
                continue
            found[window.optimizer, site].append(len(calls))
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
            fix=functools.partial(_cleared_in_closure, step=innermost(steps[optimizer])),
            count=len(calls_of_steps),
            evidence={"most_backwards_in_a_step": max(calls_of_steps)},
        )


def _shapes(run: Run, ids: Iterable[int]) -> Counter[tuple[int, ...]]:
    return Counter(run.parameters[number].shape for number in ids)


def repeats(run: Run, window: StepWindow) -> Ids:
    """Return the parameters whose new gradient was added to a gradient that this optimizer already used."""
    if not run.stepped(window.step).seen:
        return frozenset()  # this log does not record writes to gradients
    fresh = {contribution.atom for contribution in window.fresh}
    found: set[int] = set()
    for part in window.stale:
        if part.atom in fresh and not part.touched and part.factor == 1 and part.backward >= 0:
            found |= part.atom
    frozen = run.stepped(window.step).frozen
    return frozenset(found - frozen)


def _line(run: Run, windows: list[StepWindow], repeated: Ids, step: Site) -> tuple[Frame, str]:
    """Return the line to change: a call that lacks its parentheses or clears other parameters, or else the step."""
    for frame in step:
        for node in ast.walk(tree_of(frame.file) or ast.Module([], [])):
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Attribute) and value.attr == "zero_grad":
                return Frame(
                    frame.file, value.lineno, frame.function
                ), "zero_grad lacks its parentheses here and is not called"
    own = lines_of_own_losses(run, windows[-1].optimizer)
    micro = [number for number in windows[-1].micro if run.backward(number).reached & repeated]
    micro = [number for number in micro if run.events[number].site in own] or micro
    for number in range(micro[0] - 1, max(windows[-2].step, 0), -1) if micro else ():
        event = run.events[number]
        if isinstance(event, (Backward, Stepped)):
            break  # an earlier clearing belongs to another loss
        if isinstance(event, Cleared) and event.site and not (event.by_hand or event.parameters & repeated):
            return innermost(event.site), "this line clears other parameters"
    return innermost(step), ""


def _left_by_another(run: Run, window: StepWindow) -> bool:
    """Return whether a step of another line used the gradients, or they include another optimizer's loss."""
    steps = [max(step for step in each.consumed if step < window.step) for each in window.stale]
    own = lines_of_own_losses(run, window.optimizer)
    lines = {run.events[number].site in own for number in window.micro}
    return len(lines) > 1 or bool(steps and run.events[max(steps)].site != run.events[window.step].site)


def _cleared_before(at: Statement, *, name: str) -> Fix:
    """Clear before the only backward call since the last step, through the name of the optimizer there."""
    name = re.escape(name.removeprefix("self."))
    steps = [step for step in at.beside("step") if step.lineno <= at.line]
    found = re.search(rf"[\w.]*\b{name}\b", ast.unparse(steps[-1])) if steps else None
    since = steps[-2].lineno if len(steps) > 1 else 0
    calls = [
        node
        for node in at.block
        if since < node.lineno < at.line and any(called(call) == "backward" for call in _calls(node))
    ]
    if found is None or steps[-1].lineno != at.line or len(calls) != 1 or method(calls[0]) != "backward":
        return ()
    return (Insert(f"{found[0]}.zero_grad()", before=calls[0].lineno),)


def _calls(node: ast.AST) -> list[ast.Call]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _cleared(at: Statement, *, name: str) -> Fix:
    """Clear after the step, through the name that the optimizer has there."""
    name = re.escape(name.removeprefix("self."))
    for step in reversed(at.beside("step")):
        found = re.search(rf"[\w.]*\b{name}\b", ast.unparse(step))
        if found is not None:
            known = at.beside("zero_grad", of=found[0])
            return () if known else (Insert(f"{found[0]}.zero_grad()", after=step.lineno),)
    return ()


def _cleared_in_closure(at: Statement, *, step: Frame) -> Fix:
    """Clear at the start of the closure, through a name that is visible there."""
    call, function = Statement.at(step), at.function
    around = [part.name for part in at.path if isinstance(part, ast.FunctionDef)]
    if call is None or not isinstance(function, ast.FunctionDef) or at.node not in function.body:
        return ()
    if method(call.node) != "step":
        return ()
    in_class = owner(call.node).startswith("self.") and "self" in [arg.arg for arg in function.args.args]
    if not in_class and step.function not in ("<module>", *around):
        return ()
    return (Insert(f"{owner(call.node)}.zero_grad()", before=function.body[0].lineno),)


RULE = Rule("GG201", "missing-zero-grad", "error", __doc__ or "", _judge)
