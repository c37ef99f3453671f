"""Ranks that step with gradients of their own: always or sometimes, for all parameters or some, all or one."""

from __future__ import annotations

import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import prod

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import text_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.ranks._means import averaged
from gradgate.events import Backward, Cleared, Gap, OptimizerMade, Parameter, Reduced, Sharded, Site, Stepped

_LEAST = 3  # steps, or backward calls
_DIVIDES_DATA = re.compile(
    r"\[[^\]]*rank\b[^\]]*\]|\bshard\(|num_replicas"
)  # x[rank::world_size], chunks[rank]
_WHY = "Every rank trains its own model on its part of the data, and the models drift apart."


def never_averaged(run: Run, rule: Rule) -> Finding | None:
    """Report ranks that are meant to train one model, and never average a gradient before a step uses it."""
    windows = [window for window in run.windows if window.micro]
    if len(windows) < _LEAST:
        return None
    synced = {run.backward(number).synced for window in windows for number in window.micro}
    with_ddp = synced != {None}
    if synced - {False, None} or (with_ddp and None in synced):
        return None
    if not with_ddp and (run.log.distributed or not _trains_one_model(run)):
        return None
    if _communicates(run):
        return None
    last = run.backward(windows[-1].micro[-1])
    where: Site = next((event.site for event in run.of(Reduced) if event.parameters), ())
    how, advice = "", "Wrap the model in DistributedDataParallel, or average every gradient before the step."
    if where:
        advice = "Average the gradients between backward() and step()."
    elif with_ddp:
        frames = [frame for term in last.terms for frame in term.site]
        where = tuple(frame for frame in frames if ".module" in text_of(frame))[:1]
        how = " past DistributedDataParallel, or under no_sync,"
        advice = "Call the wrapper itself, ddp(x), with the last micro-batch outside of no_sync()."
    late = any(event.parameters for event in run.of(Reduced))
    return rule.finding(
        where or last.site,
        f"Each of {run.log.world} ranks makes its {len(windows)} steps{how} with the gradients of its own data: "
        + ("they are averaged after the step." if late else "they are never averaged."),
        why=_WHY,
        advice=advice,
        count=len(windows),
        evidence={"ranks": run.log.world, "steps": len(windows)},
    )


def _trains_one_model(run: Run) -> bool:
    """Say whether ranks work on one model: data is divided, or weights or numbers are communicated."""
    if run.of(Sharded, Reduced):
        return True
    files = {frame.file for event in run.of(Backward) for frame in event.site}
    return any(_DIVIDES_DATA.search(line) for file in files for line in linecache.getlines(file))


def _communicates(run: Run, *, gradients: bool = True) -> bool:
    """Say whether anything as large as a parameter is communicated once training has begun, in time for a step."""
    sizes = [prod(run.parameters[number].shape) for number in run.reached if number in run.parameters]
    large = max(2, min(sizes, default=2))
    began = next((number for number, _ in run.numbered(Backward)), len(run.events))
    for number, event in enumerate(run.events[began:], start=began):
        if isinstance(event, Reduced):
            if event.parameters and gradients and _in_time(run, number):
                return True
            if not event.parameters and event.numel > large:
                return True
    return False


def _in_time(run: Run, exchange: int) -> bool:
    """Say whether a step can use the gradients that were all-reduced: they are not cleared before."""
    for event in run.events[exchange + 1 :]:
        if isinstance(event, (Stepped, Cleared, Gap)):
            return not isinstance(event, Cleared)
    return False


def unsynchronized_ends(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report windows whose last micro-batch DDP doesn't synchronize: it averages what was summed until then."""
    found: Counter[Site] = Counter()
    for window in run.windows:
        if window.micro and not run.asks_again(window):
            last = run.backward(window.micro[-1])
            if last.synced is False and not last.managed:
                found[last.site] += 1
    for site, count in found.items() if found and not _communicates(run) else ():
        if count < 2:
            continue
        yield rule.finding(
            site,
            f"In {count} of {len(run.windows)} windows DDP doesn't synchronize the last micro-batch: each of "
            f"{run.log.world} ranks steps with the gradients of its own data.",
            why=(
                "Gradients added under no_sync() after the last synchronized micro-batch are never averaged, "
                "so the ranks' models drift apart."
            ),
            advice=(
                "Leave no_sync() for the last micro-batch of each window, including a shorter window at the "
                "end of an epoch."
            ),
            severity="error",
            count=count,
            evidence={"windows": count, "ranks": run.log.world},
        )


def left_out(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report parameters whose gradients are never all-reduced, while others of the same step always are."""
    events = [event for event in run.of(Reduced) if event.parameters]
    if run.log.distributed or not events or _communicates(run, gradients=False):
        return
    reduced = frozenset[int]().union(*(event.parameters for event in events))
    alone: dict[int, set[int]] = defaultdict(set)
    steps: Counter[int] = Counter()
    for window in run.windows:
        if window.micro and window.parameters & reduced and window.parameters - reduced:
            alone[window.optimizer] |= window.parameters - reduced
            steps[window.optimizer] += 1
    for optimizer, count in steps.items():
        if count < max(_LEAST, run.stepping[optimizer] - 1):
            continue
        yield rule.finding(
            events[-1].site,
            f"The gradients of {run.names(alone[optimizer])} are not averaged over the {run.log.world} ranks in "
            f"{count} steps; those of other parameters are.",
            why="Each rank trains these parameters on its own part of the data, and they drift apart.",
            advice="Average the gradients of all parameters that the optimizer steps.",
            count=count,
            evidence={"parameters": len(alone[optimizer]), "steps": count},
            about=alone[optimizer],
        )


def never_steps(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report ranks that take part in every average and never step, while others do."""
    stepping = next((run for run in runs if len(run.of(Stepped)) >= _LEAST), None)
    idle = [run for run in runs if not run.of(Stepped) and run.of(OptimizerMade)]
    for run in idle[:1] if stepping is not None else ():
        count = sum(bool(event.synced) for event in run.of(Backward))
        if stepping is None or count < _LEAST or _communicates(run):
            continue
        yield rule.finding(
            stepping.of(Stepped)[0].site,
            f"Rank {run.log.rank} never steps, after {count} backward calls whose gradients DDP averages.",
            why=(
                "DDP communicates gradients, not weights: this rank keeps its initial weights, and their "
                "gradients enter the average."
            ),
            advice="Step on every rank: the gradients are the same, so the weights stay the same.",
            severity="error",
            count=count,
            evidence={"backwards": count},
        )


def different_weights(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report parameters whose gradients are averaged, and which didn't begin with the same values on all ranks."""
    first = runs[0]
    windows = [window for window in first.windows if averaged(first, window)]
    if len(windows) < _LEAST:
        return
    differing = [
        number
        for number in sorted(frozenset().union(*(window.parameters for window in windows)))
        if _differ([run.parameters[number] for run in runs if number in run.parameters], len(runs))
    ]
    if not differing:
        return
    made = [event.site for event in first.made[windows[0].optimizer] if not event.added]
    created = [first.parameters[number].made for number in differing]
    yield rule.finding(
        next(filter(None, [*created, *made]), first.backward(windows[0].micro[-1]).site),
        f"{first.names(differing)} did not begin with the same values on {len(runs)} ranks, whose gradients are "
        f"averaged in {len(windows)} steps.",
        why=(
            "Each rank adds the same mean gradient to its own weights: the models stay different, and the "
            "mean gradient is right for none of them."
        ),
        advice=(
            "Copy rank 0's values to all ranks before training: DistributedDataParallel does this; by hand, "
            "call dist.broadcast(parameter.detach(), src=0) for each parameter. Or use the same seed for the "
            "model on every rank, and a different one only for the data."
        ),
        severity="error",
        count=len(windows),
        evidence={"parameters": len(differing), "ranks": len(runs), "steps": len(windows)},
    )


def _differ(parameters: Sequence[Parameter], ranks: int) -> bool:
    """Say whether a parameter is the same one on all ranks, by its name and shape, and began differently."""
    if len(parameters) < ranks or len({(parameter.name, parameter.shape) for parameter in parameters}) > 1:
        return False
    began = [parameter.began for parameter in parameters if parameter.began is not None]
    return len(began) == ranks and max(began) - min(began) > 1e-6 * max(began)
