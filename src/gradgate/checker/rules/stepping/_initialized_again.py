"""Finds parameters that are initialized again while their optimizer keeps its state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import loops_around, whole_text
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.ownership._optimizer_state_reset import STAGES, keeps_state
from gradgate.events import Ids, OptimizerMade, StateLoaded, Stepped, Written

_RANDOM = ("normal_", "uniform_", "trunc_normal_", "orthogonal_", "bernoulli_")
_CONSTANT = ("zero_", "fill_")
_MOST = 0.9  # fraction of an optimizer's values; with fewer, some layers may be reset on purpose
_CLEARED = re.compile(r"\.state\s*=|\.state\.clear\(")


def initialized_again(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report a model that is repeatedly initialized again between two steps of the same optimizer."""
    for optimizer, made in run.made.items():
        if not any(map(keeps_state, made)):
            continue
        ids: Ids = frozenset().union(*(group.parameters for event in made for group in event.groups))
        steps = [
            number for number, event in run.numbered(Stepped) if run.stepped(number).optimizer == optimizer
        ]
        again = [
            writes
            for first, second in pairwise(steps)
            if (writes := _initialization(run, ids, first, second))
        ]
        if len(again) < 2 or _on_purpose(again[0]):
            continue
        training = {(frame.file, frame.function) for frame in run.events[steps[0]].site}
        calls = [frame for frame in again[0][0].site if (frame.file, frame.function) in training]
        yield rule.finding(
            calls[0] if calls else again[0][0].site,
            f"The script initializes {run.names(ids)} again {len(again)} times between the steps of "
            f"{run.optimizer(optimizer)}, which keeps its state.",
            why="The progress of the earlier steps is lost, and the optimizer keeps the momentum of the old "
            "weights.",
            advice="Initialize the model once, before the loop. To start over on purpose, make a new optimizer.",
            count=len(again),
            evidence={"initializations": len(again), "steps": len(steps)},
            about=ids,
        )


def _initialization(run: Run, ids: Ids, first: int, second: int) -> list[Written]:
    """Return the writes between two steps if they overwrite almost all parameters, some with random values."""
    between = run.events[first + 1 : second]
    if any(isinstance(event, (OptimizerMade, StateLoaded)) for event in between):
        return []
    found = [
        event
        for event in between
        if isinstance(event, Written) and event.target == "value" and event.whole and not event.restored
        if event.op in (*_RANDOM, *_CONSTANT) and event.parameters & ids and event.site
    ]
    written: Ids = frozenset().union(*(event.parameters for event in found))
    random = any(event.op in _RANDOM for event in found)
    sizes = {number: run.parameters[number].nbytes for number in ids if number in run.parameters}
    enough = sum(sizes.get(number, 0) for number in written) >= _MOST * sum(sizes.values()) > 0
    return found if random and enough else []


def _on_purpose(writes: list[Written]) -> bool:
    """Return whether a loop iterates over seeds, folds or tasks, or the optimizer's state is cleared by hand."""
    frames = {frame for event in writes for frame in event.site}
    loops = [loop for frame in frames for loop in loops_around(frame) if isinstance(loop, ast.For)]
    return any(STAGES.search(ast.unparse(loop.target)) for loop in loops) or any(
        _CLEARED.search(whole_text(file)) for file in {frame.file for frame in frames}
    )
