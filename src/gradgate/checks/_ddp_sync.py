"""Gradients of several ranks are not exchanged, exchanged too often, or divided by the number of ranks twice.

## What it does
In each process of a run with several ranks, follows which backward calls ``DistributedDataParallel`` synchronises
and which gradients are reduced by hand. Reports steps of which none used synchronised gradients, running sums that
are summed over the ranks at each micro-batch, and losses that are divided by the number of ranks although the
gradients are averaged. Says as a note where DDP synchronises each micro-batch of a window.

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
another way (parameters, flat buffers) are taken to know what they do.

## Sources
``torch.nn.parallel.DistributedDataParallel`` in the documentation: "gradients are averaged", and ``no_sync``.
"""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checks._finding import Finding
from gradgate.checks._history import Contribution, Window
from gradgate.checks._rule import Rule
from gradgate.checks._run import Run, innermost
from gradgate.checks._source import text_of
from gradgate.events import Backward, Reduced, Sharded, Site, Written

_LEAST = 3  # steps
_SHARES = re.compile(r"\[[^\]]*rank\b[^\]]*\]|\bshard\(|num_replicas")  # x[rank::world_size], chunks[rank]
_RANKS = re.compile(r"world|rank|replica|gpu|proc|device|worker", re.IGNORECASE)


def _judge(run: Run) -> Iterator[Finding]:
    if run.log.world < 2 or len(run.windows) < _LEAST:
        return
    never = _never(run)
    if never is not None:
        yield never
        return
    yield from _each_micro_by_hand(run)
    yield from _twice(run)
    yield from _each_micro_by_ddp(run)


# Never


def _never(run: Run) -> Finding | None:
    windows = [window for window in run.windows if window.micro]
    if len(windows) < _LEAST:
        return None
    states = [{run.backward(number).synced for number in window.micro} for window in windows]
    with_ddp = any(state != {None} for state in states)
    if with_ddp and any(None in state or True in state for state in states):
        return None
    if not with_ddp and (run.log.distributed or not _meant_to_share(run)):
        return None
    if _exchanges(run):
        return None
    last = run.backward(windows[-1].micro[-1])
    frames = [frame for term in last.terms for frame in term.site]
    past = next((frame for frame in frames if ".module" in text_of(frame)), None) if with_ddp else None
    how = "past DistributedDataParallel, or under no_sync," if with_ddp else "by itself"
    return RULE.finding(
        past or last.site,
        f"Each of {run.log.world} ranks makes its {len(windows)} steps {how} with gradients of its own data: none "
        "are exchanged.",
        why="Every rank trains a model of its own on its part of the data; the models drift apart.",
        fix="Call the wrapper itself, ddp(x), with the last micro-batch outside of no_sync()."
        if with_ddp
        else "Wrap the model in DistributedDataParallel, or average every gradient over the ranks before the step.",
        count=len(windows),
        evidence={"ranks": run.log.world, "steps": len(windows)},
    )


def _meant_to_share(run: Run) -> bool:
    """Say whether ranks work on one model: data is divided, weights are sent around, or numbers are averaged."""
    if any(isinstance(event, (Sharded, Reduced)) for event in run.events):
        return True
    files = {frame.file for event in run.of(Backward) for frame in event.site}
    return any(_SHARES.search(line) for file in files for line in linecache.getlines(file))


def _exchanges(run: Run) -> bool:
    """Say whether anything as large as a parameter is exchanged once training has begun."""
    begun = False
    sizes = [_numel(run, number) for number in run.reached]
    large = max(2, min(sizes, default=2))
    for event in run.events:
        begun = begun or isinstance(event, Backward)
        if isinstance(event, Reduced) and begun and (event.parameters or event.numel > large):
            return True
    return False


def _numel(run: Run, number: int) -> int:
    size = 1
    for one in run.parameters[number].shape if number in run.parameters else ():
        size *= one
    return size


# At each micro-batch


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
            fix="Reduce once, after the last micro-batch of the window, before the step.",
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
            if not _sums(event):
                return None
            site = event.site
        elif isinstance(event, Written) and event.target == "gradient" and event.parameters & atom:
            factor *= event.factor if event.factor is not None else 1.0
    return site if abs(factor * run.log.world - 1) > 1e-3 else None


def _sums(event: Reduced) -> bool:
    return event.op.startswith("all_reduce") and not any(
        name in event.op for name in ("avg", "max", "min", "product")
    )


def _beside_backward(run: Run, frame: object) -> bool:
    inside = {(one.file, one.function) for event in run.of(Backward) for one in event.site}
    return (getattr(frame, "file", ""), getattr(frame, "function", "")) in inside


def _each_micro_by_ddp(run: Run) -> Iterator[Finding]:
    for _, site, windows in run.accumulating():
        several = [micro for _, micro in windows if len(micro) > 1]
        if len(several) >= 2 and all(run.backward(number).synced for micro in several for number in micro):
            yield RULE.finding(
                site,
                f"DDP synchronises each of {len(several[0])} micro-batches of a window, in {len(several)} windows.",
                why="The gradients are right, but they are sent around for each micro-batch, not once a window.",
                fix="Put the forward and backward of all but the last micro-batch under model.no_sync().",
                severity="info",
                count=len(several),
                evidence={"windows": len(several), "micro_batches": len(several[0])},
            )


# Twice


def _twice(run: Run) -> Iterator[Finding]:
    """Report losses divided by the number of ranks whose gradients are averaged over the ranks, too."""
    found: dict[Site, set[int]] = defaultdict(set)
    for window in run.windows:
        if not _averaged(run, window):
            continue
        for number in window.micro:
            for term in run.backward(number).terms:
                if any(op == "mul" and _is_multiple(number, run.log.world) for op, number, _ in term.factors):
                    continue  # the average over the ranks is undone: what divides are the items of all of them
                for op, divisor, site in term.factors:
                    ranks = divisor if op == "div" else 1 / divisor if divisor else 0.0
                    if _divides_by_ranks(run, ranks, site):
                        found[site].add(window.step)
    for site, steps in found.items():
        if len(steps) < 2:
            continue
        yield RULE.finding(
            site,
            f"The loss is divided by {run.log.world} ranks, and its gradients are averaged over the ranks as well, "
            f"in {len(steps)} steps.",
            why=f"The gradient is {run.log.world} times too small.",
            fix="Leave the division of the loss out: the mean over the ranks is taken once already.",
            severity="error",
            count=len(steps),
            evidence={"ranks": run.log.world, "steps": len(steps)},
        )


def _divides_by_ranks(run: Run, divisor: float, site: Site) -> bool:
    """Say whether a loss is divided by the number of ranks, or a multiple, and the line says so."""
    return _is_multiple(divisor, run.log.world) and bool(_RANKS.search(text_of(innermost(site))))


def _is_multiple(number: float, ranks: int) -> bool:
    times = number / ranks
    return times >= 1 and abs(times - round(times)) < 1e-6


def _averaged(run: Run, window: Window) -> bool:
    """Say whether the gradients that a step uses are means over the ranks."""
    if any(run.backward(number).synced for number in window.micro):
        return True
    first = min(window.micro, default=window.step)
    reduced, factor = False, 1.0
    atom = next((one.atom for one in window.fresh if one.backward >= 0), frozenset())
    for event in run.events[first : window.step]:
        if isinstance(event, Reduced) and event.parameters & atom:
            if "avg" in event.op:
                return True
            reduced = reduced or _sums(event)
        elif isinstance(event, Written) and event.target == "gradient" and event.parameters & atom:
            factor *= event.factor if event.factor is not None else 1.0
    return reduced and abs(factor * run.log.world - 1) < 1e-3


RULE = Rule("GG106", "ddp-sync", "warning", __doc__ or "", _judge)
