"""Gradients are cleared before a step uses them.

## What it does
Follows each gradient contribution until a step uses it or ``zero_grad`` clears it. Reports backward calls whose
gradients are repeatedly cleared unused, although the optimizer that owns the parameters steps in between. This is
also reported if it affects only some of the parameters that the step updates.

## Why is this bad?
The work of the backward pass is lost. If all gradients are lost, nothing is trained. If some gradients are lost,
some losses, micro-batches or layers silently have no effect.

## Example
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()

## Use instead
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

## Known limits
Three kinds of gradients may be cleared unused: gradients left by another optimizer's loss (a GAN's generator loss
in its discriminator), gradients computed only to get the gradient of an input, and gradients that the script reads
in hooks or before it clears them (Fisher information, gradient norms, weights of losses). The last kind is assumed
only if no step uses gradients of this backward call and another backward call trains the parameters. A batch that
is skipped occasionally is not reported.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._gradient_reads import reads_gradients
from gradgate.checker.analysis._history import Contribution
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import inside, path_to, spans
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Cleared, Frame, Ids, ScalerUsed, Site, Stepped, Written

_NEW_VALUES = ("assigned", "copy_", "data", "set_")
_WHY = "The gradients are lost before the optimizer sees them, so this backward pass trains nothing."
_ADVICE = "Clear after the step, or before the first backward() that the step should use."


def _judge(run: Run) -> Iterator[Finding]:
    accumulating = {site for _, site, _ in run.accumulating()}
    for site, numbers in run.by_line(number for number in run.by_backward if number >= 0).items():
        found = _wholly_lost(run, site, numbers, site in accumulating) or _partly_lost(run, site, numbers)
        yield from filter(None, [found])


# Backward calls whose gradients are all lost


def _wholly_lost(run: Run, site: Site, numbers: list[int], accumulates: bool) -> Finding | None:
    lost = {number: owned for number in numbers if (owned := _lost(run, number))}
    count, watched, all_calls = len(lost), [n for n in numbers if run.backward(n).seen], len(numbers)
    gone = {n for n in numbers if run.by_backward[n] and all(part.is_lost for part in run.by_backward[n])}
    if lost.keys() == gone & {*watched}:  # the unwatched calls are then assumed to be like these
        count = len(gone)
    else:
        all_calls = len(watched)
    if len(lost) < 2 or count < (0.6 if accumulates else 0.25) * all_calls:
        return None
    ids: Ids = frozenset().union(*(run.backward(number).reached for number in lost))
    optimizers = run.optimizers_of(ids)
    later = sum(step > min(lost) for optimizer in optimizers for step in run.steps(optimizer))
    if not later or later * 12 < len(lost):
        return None  # nothing steps here: the script wants only the gradients
    where = Counter(run.events[owned[0].cleared or 0].site for owned in lost.values()).most_common(1)[0][0]
    if _only_read(run, numbers, ids, where) or all(_of_another(run, number, optimizers) for number in lost):
        return None
    if count < all_calls and where and _skips(innermost(where)):
        return None
    here = innermost(site).file == innermost(where).file
    finding = partial(
        RULE.finding,
        where or site,
        f"The gradients of {count} of {all_calls}{' watched' * (all_calls < len(numbers))} backward calls are "
        "cleared before any step uses them.",
        why=_WHY,
        count=count,
        evidence={"lost": count, "backward_calls": all_calls}
        | ({"backward_line": innermost(site).line} if here else {}),
        about=ids,
    )
    terms = [term for number in lost for term in run.backward(number).terms]
    at = Statement.at(innermost(where)) if where else None
    behind = _steps_behind(at) if at is not None else []
    # Undivided means don't form a window: each is the whole gradient of a step.
    if (
        at is None
        or not behind
        or any(op == "div" and by > 1 for term in terms for op, by, _ in term.factors)
    ):
        return finding(advice=_ADVICE, fix=partial(_after_the_step, always=count == len(numbers)))
    last = at.later("backward")[-1:]
    return finding(
        advice=f"Step within the loop, after backward(): the step in line {behind[0].lineno} comes after the loop.",
        fix=(Move(behind[0].lineno, after=last[0].lineno),) if last and len(behind) == 1 else (),
    )


def _skips(cleared: Frame) -> bool:
    """Return whether a line clears gradients to skip a batch: before ``continue``, or instead of a step."""
    path = path_to(cleared.file, cleared.line)
    for node in (each for each in path if isinstance(each, ast.If)):
        taken, other = (node.body, node.orelse)
        if any(spans(each, cleared.line) for each in other):
            taken, other = other, taken
        stepped = any(called(call) == "step" for call in inside(ast.Call, *other))
        if stepped or isinstance(taken[-1], (ast.Continue, ast.Return)):
            return True
    return False


def _lost(run: Run, number: int) -> list[Contribution]:
    """Return a backward call's contributions to owned parameters, if all were cleared unused."""
    event = run.backward(number)
    owned = [part for part in run.by_backward[number] if run.owned & part.atom]
    if not event.seen or event.create or not all(part.is_lost for part in owned):
        return []
    inputs = event.others or any(not run.parameters[leaf].root for leaf in event.reached - run.owned)
    if inputs and any(step.used & event.reached for step in run.of(Stepped)):
        return []  # the script wants the gradient of an input
    ids = frozenset().union(*(part.atom for part in owned))
    for other in run.events[number : max((part.cleared or number for part in owned), default=number)]:
        by_hand = isinstance(other, Written) and other.target == "value" and other.parameters & ids
        if by_hand or (isinstance(other, ScalerUsed) and other.skipped):
            return []  # used by hand, or skipped because a gradient wasn't finite
    steps = (step for step in run.events[number:] if isinstance(step, Stepped) and step.closure)
    if event.closure and (step := next(steps, None)) is not None and step.used & ids:
        return []  # the gradients of a closure's last call are used
    return [] if _combined_by_hand(run, number) else owned


def _combined_by_hand(run: Run, number: int) -> bool:
    """Return whether the next step of an owning optimizer used gradients that were set or replaced by hand."""
    replaced = False
    for later, event in enumerate(run.events[number + 1 :], start=number + 1):
        if isinstance(event, Backward):
            replaced = False
        elif isinstance(event, Written) and event.target == "gradient":  # p.grad = g, p.grad.copy_(g)
            replaced = replaced or event.op in _NEW_VALUES
        elif isinstance(event, Stepped) and event.used & run.backward(number).reached:
            return replaced or any(part.backward < 0 and later in part.consumed for part in run.contributions)
    return False


def _of_another(run: Run, number: int, optimizers: frozenset[int]) -> bool:
    """Return whether another optimizer steps next without a gradient, because the graph of its loss is cut."""
    step = next((event for event in run.events[number:] if isinstance(event, Stepped)), None)
    return step is not None and step.optimizer not in optimizers and not step.used


def _only_read(run: Run, numbers: list[int], ids: Ids, cleared: Site) -> bool:
    """Return whether a line's gradients are read and then cleared, while other calls train the parameters."""
    used = {part.backward for window in run.windows for part in window.fresh if part.atom & ids}
    if not used or used & {*numbers}:
        return False
    hooked = any(run.backward(number).hooked for number in numbers)
    return hooked or reads_gradients(run.events[numbers[0]].site, cleared)


# Backward calls whose gradients are partly lost


def _partly_lost(run: Run, site: Site, numbers: list[int]) -> Finding | None:
    hits: Counter[Site] = Counter()
    gone: set[int] = set()
    for number in numbers:
        parts = run.by_backward[number]
        for optimizer in run.optimizers_of(each for part in parts for each in part.atom):
            # Gradients from before a parameter group was added don't count as lost.
            held = {
                each for (of, each), since in run.held_since.items() if of == optimizer and since <= number
            }
            mine = [part for part in parts if held & part.atom]
            lost = [part for part in mine if part.is_lost]
            used = any(run.stepped(step).optimizer == optimizer for part in mine for step in part.consumed)
            cleared = run.events[lost[0].cleared or 0] if lost else None
            # p.grad = None or p.grad.zero_() for some parameters is assumed to freeze them.
            if used and isinstance(cleared, Cleared) and not cleared.by_hand:
                hits[cleared.site] += 1
                gone |= set().union(*(part.atom for part in lost))
    where, times = hits.most_common(1)[0] if hits else ((), 0)
    if times < 2 or times * 3 < len(numbers) or _only_read(run, numbers, frozenset(gone), where):
        return None
    return RULE.finding(
        where or site,
        f"The gradients of {run.names(gone)} are cleared before the step, but the step uses other gradients of the "
        f"same loss ({times} of {len(numbers)} backward calls).",
        why=_WHY,
        advice=_ADVICE,
        fix=partial(_after_the_step, always=False),
        count=times,
        evidence={"lost": times, "parameters": len(gone)},
        about=gone,
    )


# The fix: clear later


def _own_loop(at: Statement) -> ast.For | ast.While | None:
    """Return the loop whose body holds the statement."""
    return next((loop for loop in at.loops if at.node in loop.body), None)


def _steps_behind(at: Statement) -> list[ast.stmt]:
    """Return the steps of a function that clears within a loop, if all of them come after the loop."""
    loop, steps = _own_loop(at), at.steps()
    return steps if loop and all(step.lineno > (loop.end_lineno or 0) for step in steps) else []


def _after_the_step(at: Statement, *, always: bool) -> Fix:
    """Move the clearing calls after the steps, or out of the window. ``always``: all gradients are lost."""
    if method(at.node) != "zero_grad":
        return ()
    steps, own = at.later("step"), [step for step in at.later("step") if owner(step) == owner(at.node)]
    if steps:
        again = [node for node in at.later("backward") if own and node.lineno < own[-1].lineno]
        if again and len({owner(step) for step in at.beside("step")}) > 1:
            return ()  # the call clears for the next loss
        moves = [Move(at.line, after=(own or steps)[-1].lineno)]
        for other in at.beside("zero_grad"):
            # A neighbouring call that also clears before its optimizer's step.
            below = [node for node in at.block if node.lineno > other.lineno]
            next_two = [node for node in below if method(node) in ("step", "backward")][:2]
            if abs(other.lineno - at.line) == 1 and any(owner(node) == owner(other) for node in next_two):
                moves.append(Move(other.lineno, after=steps[-1].lineno))
        return tuple(moves)
    conditions = [node for node in at.block if node.lineno > at.line and isinstance(node, ast.If)]
    inner = [step for node in conditions for step in at.steps(within=node)]
    if inner:
        return (Move(at.line, after=inner[-1].lineno),)
    backward, loop = at.earlier("backward"), _own_loop(at)
    if always and not at.steps() and backward:  # in a closure
        return (Move(at.line, before=backward[-1].lineno),)
    return (Move(at.line, before=loop.lineno),) if loop and _steps_behind(at) else ()


RULE = Rule("GG202", "zero-grad-misplaced", "error", __doc__ or "", _judge)
