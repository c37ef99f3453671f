"""Gradients of several ranks are not exchanged, exchanged too often, or divided by the number of ranks twice.

## What it does
In each process of a run with several ranks, follows which backward calls ``DistributedDataParallel`` synchronises
and which gradients are reduced by hand. Reports steps that use gradients which are not exchanged: in all steps or
some windows, of all parameters or some, on each rank or on those that never step. Reports a mean over the ranks
that is taken twice, by DDP and in the loss or by hand, or never, and running sums that are summed over the ranks
at each micro-batch. Compares the values that parameters began with. Says as a note where DDP synchronises each
micro-batch of a window.

## Why is this bad?
Without an exchange each rank trains a model of its own on its part of the data, and the one that is saved has seen
a fraction. A sum that is summed again counts the early micro-batches many times. Two divisions make the step too
small by the number of ranks.

## Example
    (loss / world_size).backward()               # DDP's mean over the ranks divides once more
    optimizer.step()

## Use instead
    loss.backward()                              # DDP averages over the ranks
    optimizer.step()

and, where windows have several micro-batches, ``with model.no_sync():`` around the forward and backward of all but
the last.

## Known limits
FSDP, pipeline and tensor parallelism, and compiled modules are not judged. Ranks that exchange something large in
another way (parameters, flat buffers) are taken to know what they do. Initial values are compared by the sum of
some of them. A sum that is divided by nothing is reported for SGD only.

## Sources
``torch.nn.parallel.DistributedDataParallel`` in the documentation: "gradients are averaged", and ``no_sync``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._history import Contribution, Window
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.ranks._own_weights import own_weights
from gradgate.checker.rules.ranks._rank_means import not_taken, sums_over_ranks, taken_twice
from gradgate.checker.rules.ranks._ranks_apart import ended_alone, left_out, never_exchanged, only_one_steps
from gradgate.events import Backward, Reduced, Site, Written

_LEAST = 3  # steps


def _judge(run: Run) -> Iterator[Finding]:
    if run.log.world < 2:
        return
    first = never_exchanged(run, RULE) or only_one_steps(run, RULE)
    if first is not None:
        yield first
    elif len(run.windows) >= _LEAST:
        yield from ended_alone(run, RULE)
        yield from left_out(run, RULE)
        yield from not_taken(run, RULE)
        yield from taken_twice(run, RULE)
        yield from _each_micro_by_hand(run)
        yield from _each_micro_by_ddp(run)


def _each_micro_by_hand(run: Run) -> Iterator[Finding]:
    """Report sums over the ranks of a gradient that holds what was summed before, if nothing divides it again."""
    summed: dict[Site, set[int]] = defaultdict(set)
    micro = 0
    for window in run.windows:
        for several in _by_atom(window).values():
            numbers = sorted(one.backward for one in several)
            for first, second in pairwise(numbers):
                site = _summed_between(run, first, second, several[0].atom)
                if site is not None and run.events[first].site == run.events[second].site:
                    summed[site].add(window.step)
                    micro = len(window.micro)
    for site, steps in summed.items():
        frame = next((one for one in site if _beside_backward(run, one)), innermost(site))
        yield RULE.finding(
            frame,
            f"The running sum of gradients is summed over {run.log.world} ranks at each of {micro} micro-batches, "
            f"in {len(steps)} windows.",
            why=f"What is in the sum is summed again: the first part counts {run.log.world}^{micro - 1} times.",
            advice="Reduce once, after the last micro-batch of the window, before the step.",
            severity="error",
            count=len(steps),
            evidence={"windows": len(steps), "micro_batches": micro, "ranks": run.log.world},
        )


def _by_atom(window: Window) -> dict[frozenset[int], list[Contribution]]:
    found = defaultdict(list)
    for one in window.fresh:
        if one.backward >= 0:
            found[one.atom].append(one)
    return found


def _summed_between(run: Run, first: int, second: int, atom: frozenset[int]) -> Site | None:
    site: Site | None = None
    factor = 1.0
    for event in run.events[first:second]:
        if isinstance(event, Reduced) and event.parameters & atom:
            if not sums_over_ranks(event):
                return None
            site = event.site
        elif isinstance(event, Written) and event.target == "gradient" and event.parameters & atom:
            factor *= event.factor if event.factor is not None else 1.0
    return site if abs(factor * run.log.world - 1) > 1e-3 else None


def _beside_backward(run: Run, frame: object) -> bool:
    inside = {(one.file, one.function) for event in run.of(Backward) for one in event.site}
    return (getattr(frame, "file", ""), getattr(frame, "function", "")) in inside


def _each_micro_by_ddp(run: Run) -> Iterator[Finding]:
    for site, several in _windows_of_several(run):
        if len(several) >= 2 and all(run.backward(number).synced for micro in several for number in micro):
            yield RULE.finding(
                site,
                f"DDP synchronises each of {len(several[0])} micro-batches of a window, in {len(several)} windows.",
                why="The gradients are right, but they are sent around for each micro-batch, not once a window.",
                advice="Put the forward and backward of all but the last micro-batch under model.no_sync().",
                severity="info",
                count=len(several),
                evidence={"windows": len(several), "micro_batches": len(several[0])},
            )


def _windows_of_several(run: Run) -> Iterator[tuple[Site, list[list[int]]]]:
    """Yield backward line and micro-batches; those of one loss in two lines too, as where one is under no_sync."""
    for _, site, windows in run.accumulating():
        yield site, [micro for _, micro in windows if len(micro) > 1]
    in_two: dict[tuple[int, Site], list[list[int]]] = defaultdict(list)
    for window in run.windows:
        events = [run.backward(number) for number in window.micro]
        losses = {event.terms[0].site if event.terms else () for event in events}
        lines = {event.site for event in events}
        if len(losses) == 1 < len(lines) == len(events) and not run.asks_again(window) and losses != {()}:
            in_two[window.optimizer, events[0].site].append(list(window.micro))
    for (_, site), several in in_two.items():
        yield site, several


RULE = Rule("GG106", "ddp-sync", "warning", __doc__ or "", _judge, own_weights)
