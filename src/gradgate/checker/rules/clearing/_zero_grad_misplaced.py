"""Gradients are cleared before a step uses them.

## What it does
Follows each gradient contribution until a step uses it or ``zero_grad`` clears it. Reports backward calls whose
gradients are repeatedly cleared unused, although the optimizer that owns the parameters steps in between.

## Why is this bad?
The work of the backward pass is lost. If all gradients are lost, nothing is trained. If some are lost, some losses
or micro-batches silently have no effect.

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
is skipped occasionally is not reported, and neither is a step that keeps the gradients of some parameters only.

## Sources
The notes on ``torch.optim.Optimizer.zero_grad``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_reads import reads_gradients
from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._history import Contribution
from gradgate.checker.analysis._oracle import fits
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import inside, path_to, spans
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import clearing as texts
from gradgate.events import Backward, Frame, Ids, ScalerUsed, Site, Stepped, Written

_NEW_VALUES = ("assigned", "copy_", "data", "set_")


def _judge(run: Run) -> Iterator[Finding]:
    accumulating = {fit.site for fit in fits(run)}
    for site, numbers in run.by_line(number for number in run.by_backward if number >= 0).items():
        yield from filter(None, [_lost_at(run, site, numbers, site in accumulating)])


def _lost_at(run: Run, site: Site, numbers: list[int], accumulates: bool) -> Finding | None:
    lost = {number: owned for number in numbers if (owned := _lost(run, number))}
    count, watched, calls = len(lost), {n for n in numbers if run.backward(n).seen}, len(numbers)
    gone = {n for n in numbers if run.by_backward[n] and all(part.is_lost for part in run.by_backward[n])}
    if lost.keys() == gone & watched:  # the unwatched calls are then assumed to be like these
        count = len(gone)
    else:
        calls = len(watched)
    # A batch that is skipped now and then loses few; of a window that is cleared too often, only the last is used.
    if len(lost) < 2 or count < (0.6 if accumulates else 0.25) * calls:
        return None
    ids = union(run.backward(number).reached for number in lost)
    optimizers = run.optimizers_of(ids)
    later = sum(step > min(lost) for optimizer in optimizers for step in run.steps(optimizer))
    if not later or later * 12 < len(lost):
        return None  # nothing steps here: the script wants only the gradients
    where = Counter(run.events[owned[0].cleared or 0].site for owned in lost.values()).most_common(1)[0][0]
    if _only_read(run, numbers, ids, where) or all(_of_another(run, number, optimizers) for number in lost):
        return None
    if count < calls and where and _skips(innermost(where)):
        return None
    return RULE.say(
        where or site, texts.LOST, fix=_after_the_step, count=count, about=ids, lost=count, calls=calls
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


def _after_the_step(at: Statement) -> Fix:
    """Move the clearing call behind the step of the same optimizer, or behind the condition's that makes it."""
    if method(at.node) != "zero_grad":
        return ()
    own = [step for step in at.later("step") if owner(step) == owner(at.node)]
    if own and not any(node.lineno < own[-1].lineno for node in at.later("backward")):
        return (Move(at.line, after=own[-1].lineno),)
    conditions = [node for node in at.block if node.lineno > at.line and isinstance(node, ast.If)]
    inner = [step for node in conditions for step in at.steps(within=node)]
    return (Move(at.line, after=inner[-1].lineno),) if inner and not own else ()


RULE = Rule("GG202", "zero-grad-misplaced", "error", __doc__ or "", _judge)
