"""A step uses gradients that an earlier step has used already.

## What it does
Follows every gradient contribution, parameter by parameter. Reports steps that are given new gradients on top of
old ones that the same optimizer has stepped with before: nothing is cleared, something else is, or only a part.

## Why is this bad?
Each step repeats all earlier ones. The gradient grows with the number of steps; the loss may fall for a while.

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
Gradients that are multiplied or written by hand between two steps (decay, momentum by hand) are taken to be meant.
Steps that ask a closure several times are left out.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from gradgate.checker.analysis._history import Window
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import tree_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Cleared, Frame, Ids, Site

_WHY = "Every step applies the gradients of earlier steps again, and the update grows with their number."


def _judge(run: Run) -> Iterator[Finding]:
    by_optimizer: dict[int, list[Window]] = {}
    for window in run.windows:
        if not run.asks_again(window) and _repeats(run, window):
            by_optimizer.setdefault(window.optimizer, []).append(window)
    for optimizer, windows in by_optimizer.items():
        if len(windows) < 2 or len(windows) * 8 < run.stepping[optimizer]:
            continue
        repeated = frozenset().union(*(_repeats(run, window) for window in windows))
        most = max(len({one.backward for one in (*w.fresh, *w.stale)}) for w in windows)
        step = run.events[windows[0].step].site
        where, cleared = _line(run, windows, repeated, step)
        yield RULE.finding(
            where,
            f"{len(windows)} of {run.stepping[optimizer]} steps of {run.optimizer(optimizer)} use the gradients of "
            f"{run.names(repeated)} again that earlier steps have used: up to {most} backward calls in one step"
            + (f"; {cleared}." if cleared else "."),
            why=_WHY,
            advice=f"Call {run.optimizer(optimizer)}.zero_grad() before each window's first backward().",
            fix=functools.partial(_cleared, name=run.optimizer(optimizer)),
            count=len(windows),
            evidence={"most_backwards_in_a_step": most, "parameters": len(repeated)},
        )


def _repeats(run: Run, window: Window) -> Ids:
    """Return the parameters whose new gradient was added to one that this optimizer has used before."""
    if not run.stepped(window.step).seen:
        return frozenset()  # what is done to gradients by hand was not looked at
    fresh = {one.atom for one in window.fresh}
    found: set[int] = set()
    for one in window.stale:
        if one.atom in fresh and not one.touched and one.factor == 1 and one.backward >= 0:
            found |= one.atom
    frozen = run.stepped(window.step).frozen
    return frozenset(found - frozen)


def _line(run: Run, windows: list[Window], repeated: Ids, step: Site) -> tuple[Frame | Site, str]:
    """Return the line to change: a call that is not made, one that clears something else, or the step itself."""
    frame = innermost(step)
    for one in step:
        uncalled = _uncalled(one)
        if uncalled is not None:
            return uncalled, "zero_grad is named there and not called"
    window = windows[-1]
    micro = [number for number in window.micro if run.backward(number).reached & repeated]
    if micro:
        for number in range(micro[0] - 1, max(windows[-2].step, 0), -1):
            event = run.events[number]
            if isinstance(event, Backward) and event.reached & repeated:
                break
            if (
                isinstance(event, Cleared)
                and not event.by_hand
                and not event.parameters & repeated
                and event.site
            ):
                return event.site, "what is cleared there are others"
    return frame, ""


def _uncalled(frame: Frame) -> Frame | None:
    """Return a line of the same file on which ``zero_grad`` stands without its parentheses."""
    tree = tree_of(frame.file)
    for node in ast.walk(tree) if tree is not None else ():
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "zero_grad"
        ):
            return Frame(frame.file, node.lineno, frame.function)
    return None


def _cleared(at: Statement, *, name: str) -> Fix:
    """Clear after the step, by the name that the step has there."""
    name = re.escape(name.removeprefix("self."))
    for step in reversed(at.beside("step")):
        found = re.search(rf"[\w.]*\b{name}\b", ast.unparse(step))
        if found is not None:
            known = at.beside("zero_grad", of=found[0])
            return () if known else (Insert(f"{found[0]}.zero_grad()", after=step.lineno),)
    return ()


RULE = Rule("GG201", "missing-zero-grad", "error", __doc__ or "", _judge)
