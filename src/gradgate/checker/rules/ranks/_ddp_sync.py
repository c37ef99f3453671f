"""Gradients are not averaged over the ranks, averaged too often, or divided by the number of ranks twice.

## What it does
In each process of a run with several ranks, follows which backward calls ``DistributedDataParallel`` synchronizes
and which gradients are all-reduced by hand. Reports:

- steps whose gradients are not averaged, always or in some windows, for all or for some parameters;
- a rank that takes part in the averages but never steps;
- a mean over the ranks that is taken twice (by DDP, and again in the loss or by hand) or never;
- running sums that are all-reduced at each micro-batch;
- replicas whose parameters don't begin with equal values, or become different for good. The rule compares the
  values on all ranks before each of the first steps.

Reports, as a note, that DDP synchronizes each micro-batch of a window. Mistakes that are visible in a single
process are also reported for a run with a single rank.

## Why is this bad?
Without an all-reduce, each rank trains its own model on its part of the data, and the saved model has seen
only a fraction of the data. If a running sum is all-reduced again, the early micro-batches count many times. Two
divisions make the step too small by a factor of the number of ranks.

## Example
    (loss / world_size).backward()               # DDP divides by world_size again
    optimizer.step()

## Use instead
    loss.backward()                              # DDP averages the gradients over the ranks
    optimizer.step()

If windows have several micro-batches, put the forward and backward pass of each micro-batch except the last under
``with model.no_sync():``.

## Known limits
FSDP, pipeline parallelism, tensor parallelism and compiled modules are not judged. Ranks that communicate large
tensors in another way (parameters, flat buffers) are judged only if they do so between all steps and the ranks'
values never become equal again. To compare values, the rule takes the sum or norm of some parameters in the first
60 steps. A sum that is never divided is reported for SGD only, and only if the learning rate is not divided by the
number of ranks. In a flat buffer, it is reported only if one function copies the gradients in and out and computes
nothing. A loss that is divided by the items of all ranks and then averaged by DDP is found only if its targets are
class indices and the number of targets changes between steps.

## Sources
``torch.nn.parallel.DistributedDataParallel`` in the documentation: "gradients are averaged", and ``no_sync``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._queries import shared_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ranks._divided_twice import divided_by_all_items, divided_twice
from gradgate.checker.rules.ranks._means import LEAST, never_divided, reduced_between, sums_over_ranks
from gradgate.checker.rules.ranks._not_averaged import (
    different_weights,
    left_out,
    never_averaged,
    never_steps,
    unsynchronized_ends,
)
from gradgate.checker.rules.ranks._replicas import ended_apart
from gradgate.events import Backward, Ids, Site, Wrapped


def _judge(run: Run) -> Iterator[Finding]:
    if run.log.world < 2 and not run.of(Wrapped):
        return
    first = never_averaged(run, RULE)
    if first is not None:
        yield first
    elif len(run.windows) >= LEAST:
        for judge in (unsynchronized_ends, left_out, never_divided, divided_twice):
            yield from judge(run, RULE)
        yield from _reduced_at_each(run)
        yield from _synchronized_at_each(run)


def _judge_ranks(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    judges = (different_weights, never_steps, divided_by_all_items)
    found = [finding for judge in judges for finding in judge(runs, rule)]
    yield from found
    if not found and not any(finding.severity != "info" for run in runs for finding in _judge(run)):
        yield from ended_apart(runs, rule)


def _reduced_at_each(run: Run) -> Iterator[Finding]:
    """Report running sums of gradients that are all-reduced again without a division in between."""
    windows: dict[Site, set[int]] = defaultdict(set)
    micro = 0
    for window in run.windows:
        numbers = grouped((part.atom, part.backward) for part in window.fresh if part.backward >= 0)
        for atom, backwards in numbers.items():
            for first, second in pairwise(sorted(backwards)):
                site = _summed_between(run, first, second, atom)
                if site is not None and run.events[first].site == run.events[second].site:
                    windows[site].add(window.step)
                    micro = len(window.micro)
    beside = [frame for event in run.of(Backward) for frame in event.site]
    for site, steps in windows.items():
        yield RULE.finding(
            shared_line(site, beside) or site,
            f"The running sum of gradients is all-reduced over {run.log.world} ranks at each of {micro} "
            f"micro-batches, in {len(steps)} windows.",
            why="Each all-reduce sums the earlier sum again: the first micro-batch counts "
            f"{run.log.world}^{micro - 1} times.",
            advice="All-reduce once, after the last micro-batch of the window, before the step.",
            severity="error",
            count=len(steps),
            evidence={"windows": len(steps), "micro_batches": micro, "ranks": run.log.world},
        )


def _summed_between(run: Run, first: int, second: int, atom: Ids) -> Site | None:
    reduced, factor = reduced_between(run, first, second, atom)
    summed = bool(reduced) and all(map(sums_over_ranks, reduced))
    return reduced[-1].site if summed and abs(factor * run.log.world - 1) > 1e-3 else None


def _synchronized_at_each(run: Run) -> Iterator[Finding]:
    windows = {
        (optimizer, site): [micro for _, micro in windows if len(micro) > 1]
        for optimizer, site, windows in run.accumulating()
    }
    for window in run.windows:
        # One loss at two lines, one of which may be under no_sync.
        events = [run.backward(number) for number in window.micro]
        losses = {event.terms[0].site if event.terms else () for event in events}
        lines = {event.site for event in events}
        if (
            len(losses) == 1 < len(lines) == len(events)
            and not run.repeats_closure(window)
            and losses != {()}
        ):
            windows.setdefault((window.optimizer, events[0].site), []).append(list(window.micro))
    for (_, site), several in windows.items():
        if len(several) >= 2 and all(run.backward(number).synced for micro in several for number in micro):
            yield RULE.finding(
                site,
                f"DDP synchronizes each of {len(several[0])} micro-batches of a window, in {len(several)} windows.",
                why="The gradients are correct, but DDP communicates them for each micro-batch instead of once per "
                "window.",
                advice="Put the forward and backward of all but the last micro-batch under model.no_sync().",
                severity="info",
                count=len(several),
                evidence={"windows": len(several), "micro_batches": len(several[0])},
            )


RULE = Rule("GG106", "ddp-sync", "warning", __doc__ or "", _judge, _judge_ranks)
