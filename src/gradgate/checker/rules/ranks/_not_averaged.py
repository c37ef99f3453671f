"""Finds ranks that step with unaveraged gradients: always or in some windows, for all or for some parameters."""

from __future__ import annotations

import ast
import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import prod

from gradgate.checker.analysis._queries import shared_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import path_to, text_of
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ranks._means import LEAST, averaged, differ
from gradgate.events import (
    Backward,
    Cleared,
    Frame,
    Gap,
    OptimizerMade,
    Parameter,
    Reduced,
    Sharded,
    Site,
    Stepped,
    Wrapped,
)

_DIVIDES_DATA = re.compile(
    r"\[[^\]]*rank\b[^\]]*\]|\bshard\(|num_replicas"
)  # x[rank::world_size], chunks[rank]
_PAST = "without the DistributedDataParallel wrapper"
_CALL_WRAPPER = "Call the DistributedDataParallel itself, not the module inside it"
_WHY = "Every rank trains its own model on its part of the data, and the models drift apart."


def never_averaged(run: Run, rule: Rule) -> Finding | None:
    """Report ranks that seem to train one model but never average a gradient before the step."""
    windows = [window for window in run.windows if window.micro]
    if len(windows) < LEAST:
        return None
    synced = {run.backward(number).synced for window in windows for number in window.micro}
    if synced not in ({None}, {False}) or _communicates(run):
        return None
    if synced == {None} and (run.log.distributed or not _trains_one_model(run)):
        return None
    last = run.backward(windows[-1].micro[-1])
    late: Site = next((event.site for event in run.of(Reduced) if event.parameters), ())
    where: Frame | Site = shared_line(late, last.site) or late or last.site
    how, advice = "", "Wrap the model in DistributedDataParallel, or average every gradient before the step."
    if late:
        advice = "Average the gradients between backward() and step()."
    elif synced == {False} and last.around:
        events = [run.backward(number) for window in windows for number in window.micro]
        used = next((event for event in reversed(events) if event.uses), last)
        where, how, advice = _past_wrapper(used), f", {_PAST}", f"{_CALL_WRAPPER}."
    elif synced == {False}:
        how, advice = ", under no_sync()", "Run the last micro-batch of each window outside of no_sync()."
    ranks = f"Each of {run.log.world} ranks" if run.log.world > 1 else "Each rank"
    return rule.finding(
        where,
        f"{ranks} makes its {len(windows)} steps with the gradients of its own data{how}: the gradients "
        + ("are averaged only after the step." if late else "are never averaged."),
        why=_WHY,
        advice=advice,
        count=len(windows),
        evidence={"ranks": run.log.world, "steps": len(windows)},
    )


def _past_wrapper(event: Backward) -> Frame | Site:
    """Return the line whose forward pass bypasses DDP: the line that uses ``.module``, or else the last use."""
    uses = tuple(frame for _, site in reversed(event.uses) for frame in site)
    frames = [*(frame for term in event.terms for frame in term.site), *uses]
    named = (frame for frame in frames if ".module" in text_of(frame))
    return next(named, None) or shared_line(uses, event.site) or event.site


def _trains_one_model(run: Run) -> bool:
    """Return whether the ranks train one model: they divide the data, or communicate weights or numbers."""
    if run.of(Sharded, Reduced):
        return True
    files = {frame.file for event in run.of(Backward) for frame in event.site}
    return any(_DIVIDES_DATA.search(line) for file in files for line in linecache.getlines(file))


def _communicates(run: Run, *, gradients: bool = True) -> bool:
    """Return whether, once training has begun, a tensor as large as a parameter is communicated before a step."""
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
    """Return whether the all-reduced gradients can reach a step: nothing clears them before it."""
    for event in run.events[exchange + 1 :]:
        if isinstance(event, (Stepped, Cleared, Gap)):
            return not isinstance(event, Cleared)
    return False


def unsynchronized_ends(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report windows whose last micro-batch DDP doesn't synchronize, so that its gradients are not averaged."""
    found: Counter[tuple[Frame | Site, bool]] = Counter()
    windows = (window for window in run.windows if window.micro and not run.repeats_closure(window))
    ends = [run.backward(window.micro[-1]) for window in windows]
    alone = [last for last in ends if last.synced is False and not last.managed]
    # Only calls that were watched closely show the line. Other calls of the same backward line share it.
    past = {last.site: _past_wrapper(last) for last in alone if last.around and last.uses}
    for last in alone:
        if not last.around:
            found[last.site, False] += 1
        elif last.site in past:
            found[_past_wrapper(last) if last.uses else past[last.site], True] += 1
    for (where, around), count in found.items() if found and not _communicates(run) else ():
        if count < 2:
            continue
        how = (
            f"the last micro-batch is computed {_PAST}"
            if around
            else "DDP doesn't synchronize the last micro-batch"
        )
        yield rule.finding(
            where,
            f"In {count} of {len(run.windows)} windows {how}: each rank steps with the gradients of its own data.",
            why="DDP averages gradients only after a forward pass of the wrapper, so the ranks' models drift "
            "apart."
            if around
            else "Gradients added under no_sync() after the last synchronized micro-batch are never averaged, "
            "so the ranks' models drift apart.",
            advice=f"{_CALL_WRAPPER}, in these steps too."
            if around
            else "Run the last micro-batch of each window outside of no_sync(), even if the last window of an "
            "epoch is shorter.",
            severity="error",
            count=count,
            evidence={"windows": count, "ranks": run.log.world},
        )


def left_out(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report parameters whose gradients are never averaged although other parameters' gradients are."""
    wrapped = [event for event in run.of(Wrapped) if event.parameters]
    events = wrapped or [event for event in run.of(Reduced) if event.parameters and not run.log.distributed]
    if not events or _communicates(run, gradients=False):
        return
    averaged = frozenset[int]().union(*(event.parameters for event in (*events, *run.of(Reduced))))
    alone: dict[int, set[int]] = defaultdict(set)
    steps: Counter[int] = Counter()
    for window in run.windows:
        if not window.micro or any(run.backward(number).managed for number in window.micro):
            continue
        if window.parameters - averaged and (wrapped or window.parameters & averaged):
            alone[window.optimizer] |= window.parameters - averaged
            steps[window.optimizer] += 1
    for optimizer, count in steps.items():
        if count < max(LEAST, run.stepping[optimizer] - 1):
            continue
        ids = alone[optimizer]
        where, advice = _outside(run, ids, wrapped) if wrapped else (events[-1].site, "")
        yield rule.finding(
            where,
            f"The gradients of {run.names(ids)} are not averaged over the ranks in {count} steps, although other "
            "parameters' gradients are.",
            why="Each rank trains these parameters on its own part of the data, and they drift apart.",
            advice=advice or "Average the gradients of all parameters that the optimizer updates.",
            count=count,
            evidence={"parameters": len(ids), "steps": count},
            about=ids,
        )


def _outside(run: Run, ids: set[int], wrapped: Sequence[Wrapped]) -> tuple[Frame | Site, str]:
    """Return the line that makes a module outside DDP, or a DDP with the module still frozen, and the advice."""
    several = [run.parameters[number] for number in sorted(ids)]
    root = several[0].root
    for event in wrapped:
        if root and any(run.parameters[number].root == root for number in event.parameters):
            return event.site, (
                "Construct DistributedDataParallel when all parameters to be trained have requires_grad=True: "
                "it never averages the gradient of a parameter that was frozen when DDP was constructed."
            )
    made = [frame for frame in several[0].made if not _in_module(frame)] or several[0].made
    name = root or "the module"
    advice = f"Wrap {name} in DistributedDataParallel as well, or make it a submodule of the wrapped module."
    return (made[0] if made else wrapped[-1].site), advice


def _in_module(frame: Frame) -> bool:
    """Return whether a line belongs to the constructor of a module, not to that of a trainer."""
    around = [node for node in path_to(frame.file, frame.line) if isinstance(node, ast.ClassDef)]
    forward = "forward" in {getattr(node, "name", "") for each in around[-1:] for node in each.body}
    return frame.function == "__init__" and (not around or forward or "super()" in text_of(frame))


def never_steps(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report ranks that take part in every average but never step, while other ranks do."""
    stepping = next((run for run in runs if len(run.of(Stepped)) >= LEAST), None)
    idle = [run for run in runs if not run.of(Stepped) and run.of(OptimizerMade)]
    for run in idle[:1] if stepping is not None else ():
        count = sum(bool(event.synced) for event in run.of(Backward))
        if stepping is None or count < LEAST or _communicates(run):
            continue
        yield rule.finding(
            stepping.of(Stepped)[0].site,
            f"Rank {run.log.rank} never steps, after {count} backward calls whose gradients DDP averages.",
            why="DDP communicates gradients, not weights: this rank keeps its initial weights, and their "
            "gradients enter the average.",
            advice="Step on every rank: the gradients are the same, so the weights stay the same.",
            severity="error",
            count=count,
            evidence={"backwards": count},
        )


def different_weights(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report parameters that have averaged gradients but different initial values on the ranks."""
    first = runs[0]
    windows = [window for window in first.windows if averaged(first, window)]
    if len(windows) < LEAST:
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
        f"{first.names(differing)} did not begin with the same values on {len(runs)} ranks, although the ranks "
        f"average gradients in {len(windows)} steps.",
        why="Each rank applies the mean gradient to different weights: the models stay different, and the "
        "mean gradient is right for none of them.",
        advice="Copy rank 0's values to all ranks before training. DistributedDataParallel does this; by hand, "
        "call dist.broadcast(parameter.detach(), src=0) for each parameter. Or use the same seed for the "
        "model on every rank, and different seeds only for the data.",
        severity="error",
        count=len(windows),
        evidence={"parameters": len(differing), "ranks": len(runs), "steps": len(windows)},
    )


def _differ(parameters: Sequence[Parameter], ranks: int) -> bool:
    """Return whether a parameter has the same name and shape on all ranks, but different initial values."""
    if len(parameters) < ranks or len({(parameter.name, parameter.shape) for parameter in parameters}) > 1:
        return False
    began = [parameter.began for parameter in parameters if parameter.began is not None]
    return len(began) == ranks and differ(began)
