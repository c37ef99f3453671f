"""Ranks that step with gradients of their own: always or in some windows, of all parameters or some, all or one."""

from __future__ import annotations

import ast
import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import text_of, tree_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Cleared, Frame, Gap, OptimizerMade, Reduced, Sharded, Site, Stepped

_LEAST = 3  # steps
_SHARES = re.compile(r"\[[^\]]*rank\b[^\]]*\]|\bshard\(|num_replicas")  # x[rank::world_size], chunks[rank]
_FIRST_RANK = re.compile(r"rank|main|master|primary", re.IGNORECASE)
_DRIFT = "Every rank trains a model of its own on its part of the data; the models drift apart."


def never_exchanged(run: Run, rule: Rule) -> Finding | None:
    """Report ranks that are meant to train one model, and never exchange a gradient before a step uses it."""
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
    late = next((event.site for event in run.of(Reduced) if event.parameters), None)
    how = "past DistributedDataParallel, or under no_sync," if with_ddp else "by itself"
    fix = (
        "Wrap the model in DistributedDataParallel, or average every gradient over the ranks before the step."
    )
    if late is not None:
        fix = "Average the gradients between backward() and step()."
    elif with_ddp:
        fix = "Call the wrapper itself, ddp(x), with the last micro-batch outside of no_sync()."
    return rule.finding(
        late or past or last.site,
        f"Each of {run.log.world} ranks makes its {len(windows)} steps {how} with gradients of its own data: "
        + ("they are exchanged after the step." if late is not None else "none are exchanged."),
        why=_DRIFT,
        advice=fix,
        count=len(windows),
        evidence={"ranks": run.log.world, "steps": len(windows)},
    )


def _meant_to_share(run: Run) -> bool:
    """Say whether ranks work on one model: data is divided, weights are sent around, or numbers are averaged."""
    if any(isinstance(event, (Sharded, Reduced)) for event in run.events):
        return True
    files = {frame.file for event in run.of(Backward) for frame in event.site}
    return any(_SHARES.search(line) for file in files for line in linecache.getlines(file))


def _exchanges(run: Run, *, gradients: bool = True) -> bool:
    """Say whether anything as large as a parameter is exchanged once training has begun, in time for a step."""
    begun = False
    sizes = [_numel(run, number) for number in run.reached]
    large = max(2, min(sizes, default=2))
    for number, event in enumerate(run.events):
        begun = begun or isinstance(event, Backward)
        if isinstance(event, Reduced) and begun:
            if event.parameters:
                if gradients and _in_time(run, number):
                    return True
            elif event.numel > large:
                return True
    return False


def _in_time(run: Run, exchange: int) -> bool:
    """Say whether a step can use the gradients that were exchanged: they are not cleared before."""
    for event in run.events[exchange + 1 :]:
        if isinstance(event, (Stepped, Cleared, Gap)):
            return not isinstance(event, Cleared)
    return False


def _numel(run: Run, number: int) -> int:
    size = 1
    for one in run.parameters[number].shape if number in run.parameters else ():
        size *= one
    return size


def ended_alone(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report windows whose last micro-batch DDP does not synchronise: it averages what was summed up to there."""
    found: dict[Site, int] = defaultdict(int)
    for window in run.windows:
        if window.micro and not run.asks_again(window):
            last = run.backward(window.micro[-1])
            if last.synced is False and not last.managed:
                found[last.site] += 1
    if not found or _exchanges(run):
        return
    for site, count in found.items():
        if count < 2:
            continue
        yield rule.finding(
            site,
            f"In {count} of {len(run.windows)} windows DDP does not synchronise the last micro-batch: each of "
            f"{run.log.world} ranks steps with gradients of its own data.",
            why="What is added under no_sync() after the last synchronised micro-batch is never averaged; the "
            "models of the ranks drift apart.",
            advice="Leave no_sync() at the last micro-batch of each window, also of a shorter one that ends an "
            "epoch.",
            severity="error",
            count=count,
            evidence={"windows": count, "ranks": run.log.world},
        )


def left_out(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report parameters whose gradients are never exchanged, while those of others beside them always are."""
    events = [event for event in run.of(Reduced) if event.parameters]
    if run.log.distributed or not events or _exchanges(run, gradients=False):
        return
    exchanged = frozenset[int]().union(*(event.parameters for event in events))
    alone: dict[int, set[int]] = defaultdict(set)
    steps: Counter[int] = Counter()
    for window in run.windows:
        if window.micro and window.parameters & exchanged and window.parameters - exchanged:
            alone[window.optimizer] |= window.parameters - exchanged
            steps[window.optimizer] += 1
    for optimizer, count in steps.items():
        if count < max(_LEAST, run.stepping[optimizer] - 1):
            continue
        yield rule.finding(
            events[-1].site,
            f"The gradients of {run.names(alone[optimizer])} are not exchanged between {run.log.world} ranks in "
            f"{count} steps; those of other parameters are.",
            why="Each rank trains these parameters on its own part of the data; they drift apart.",
            advice="Average the gradients of all parameters that the optimizer steps.",
            count=count,
            evidence={"parameters": len(alone[optimizer]), "steps": count},
            about=alone[optimizer],
        )


def only_one_steps(run: Run, rule: Rule) -> Finding | None:
    """Report a rank that takes part in every average and never steps, where the source keeps it from that."""
    several = [event for event in run.of(Backward) if event.synced]
    if len(several) < _LEAST or run.of(Stepped) or not run.of(OptimizerMade) or _exchanges(run):
        return None
    names = {name.rpartition(".")[2] for name in run.log.optimizers.values()}
    files = {frame.file for event in several for frame in event.site}
    place = next((frame for file in sorted(files) if (frame := _step_of_one_rank(file, names))), None)
    if place is None:
        return None
    return rule.finding(
        place,
        f"Rank {run.log.rank} never steps, after {len(several)} backward calls whose gradients DDP averages.",
        why="DDP sends gradients around, not weights: this rank keeps the weights that it began with, and their "
        "gradients go into the average.",
        advice="Step on every rank: the gradients are the same, and so the weights stay the same.",
        severity="error",
        count=len(several),
        evidence={"backwards": len(several)},
    )


def _step_of_one_rank(file: str, optimizers: set[str]) -> Frame | None:
    """Return the line of a step that stands under a condition on the rank."""
    for node in ast.walk(tree_of(file) or ast.Module([], [])):
        if not isinstance(node, ast.If) or not _FIRST_RANK.search(ast.unparse(node.test)):
            continue
        for inner in (one for statement in node.body for one in ast.walk(statement)):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                owner = ast.unparse(inner.func.value).rpartition(".")[2]
                if inner.func.attr == "step" and owner in optimizers:
                    return Frame(file, inner.lineno, "")
    return None
