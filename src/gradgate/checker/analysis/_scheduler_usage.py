"""How a learning-rate schedule goes beside the steps, and what its source says of the unit that it counts in."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import functions
from gradgate.checker.analysis._source import function_at, statement_at, tree_of
from gradgate.events import (
    Backward,
    EpochEnded,
    EpochStarted,
    Frame,
    ScalerStepped,
    Scheduled,
    SchedulerMade,
    Stepped,
)

_BATCHES = re.compile(r"step|iter|batch|update|loader", re.IGNORECASE)
_EPOCHS = re.compile(r"epoch", re.IGNORECASE)
_STEPS = re.compile(r"steps|iters|iterations|updates|batches|loader", re.IGNORECASE)


@dataclass
class Pace:
    """One scheduler's calls beside what its optimizer did. Numbers are those of events."""

    number: int  # where the scheduler was made
    made: SchedulerMade
    calls: list[int] = field(default_factory=list)  # not those by other schedulers
    inner: int = 0  # calls by other schedulers
    steps: list[int] = field(default_factory=list)  # those that a gradient scaler skipped, too
    backwards: list[int] = field(default_factory=list)
    epochs: int = 0  # passes over a DataLoader with steps in them

    @property
    def each(self) -> str:
        """How often it is advanced, in words."""
        return f"{len(self.calls)} times for {len(self.steps)} steps"

    @property
    def per_epoch(self) -> float:
        """Steps in a pass over the data; 0 where no DataLoader shows passes."""
        return len(self.steps) / self.epochs if self.epochs else 0.0

    def share_of_steps_between(self) -> float:
        """Return the share of the calls, the first left out, that have a step between them and the one before."""
        pairs = list(pairwise(self.calls))
        filled = sum(any(first < step < second for step in self.steps) for first, second in pairs)
        return filled / len(pairs) if pairs else 1.0


def paces(run: Run) -> dict[int, list[Pace]]:
    """Return every scheduler's pace, by optimizer."""
    found: dict[int, Pace] = {}
    steps: dict[int, list[int]] = defaultdict(list)
    for number, event in enumerate(run.events):
        if isinstance(event, SchedulerMade):
            found.setdefault(event.scheduler, Pace(number, event))
        elif isinstance(event, Scheduled) and event.scheduler in found:
            if event.inner:
                found[event.scheduler].inner += 1
            else:
                found[event.scheduler].calls.append(number)
        elif isinstance(event, Stepped) or (isinstance(event, ScalerStepped) and event.skipped):
            steps[event.optimizer].append(number)
    by_optimizer = defaultdict(list)
    for pace in found.values():
        optimizer = pace.made.optimizer
        pace.steps = steps[optimizer]
        pace.backwards = _backwards(run, optimizer)
        pace.epochs = _epochs(run, pace.steps)
        by_optimizer[optimizer].append(pace)
    return by_optimizer


def _backwards(run: Run, optimizer: int) -> list[int]:
    mine = {number for number, owners in run.owners.items() if optimizer in owners}
    return [
        number
        for number, event in run.numbered(Backward)
        if isinstance(event, Backward) and not mine.isdisjoint(event.reached)
    ]


def _epochs(run: Run, steps: list[int]) -> int:
    """Count passes over a DataLoader in which steps were made."""
    spans: list[tuple[int, int]] = []
    began: dict[int, int] = {}
    for number, event in run.numbered(EpochStarted, EpochEnded):
        loader = event.loader  # type: ignore[attr-defined]
        if loader in began:
            spans.append((began.pop(loader), number))
        if isinstance(event, EpochStarted):
            began[loader] = number
    spans += [(number, len(run.events)) for number in began.values()]
    return sum(any(first < step < last for step in steps) for first, last in spans)


# What the source says


def unit_of(made: SchedulerMade) -> str | None:
    """Say whether a schedule's length is written in "epochs" or in "batches", where its words tell."""
    words = _words(innermost(made.site), made.kind)
    if words is None:
        return None
    names, product = words
    batches = any(_BATCHES.search(name) for name in names)
    epochs = any(_EPOCHS.search(name) for name in names)
    if batches or (product and epochs):
        return "batches"
    return "epochs" if epochs else None


def speaks_of_steps(made: SchedulerMade) -> bool:
    """Say whether a function that gives the rate is written in terms of steps and never of epochs."""
    names: set[str] = set()
    for part in _parts(innermost(made.site), made.kind):
        nodes = list(ast.walk(part))
        given = {node.arg for node in nodes if isinstance(node, ast.arg)}
        names |= {name for node in nodes for name in _name(node) - given if not isinstance(node, ast.keyword)}
    return any(_STEPS.search(name) for name in names) and not any(_EPOCHS.search(name) for name in names)


def divides(made: SchedulerMade) -> bool:
    """Say whether a schedule's length is written as a quotient."""
    return any(
        isinstance(node, (ast.FloorDiv, ast.Div))
        for part in _parts(innermost(made.site), made.kind)
        for node in ast.walk(part)
    )


def _words(frame: Frame, kind: str) -> tuple[set[str], bool] | None:
    parts = _parts(frame, kind)
    names: set[str] = set()
    product = False
    for part in parts:
        for node in ast.walk(part):
            names |= _name(node)
            product |= isinstance(node, ast.Mult)
    return (names, product) if parts else None


def _name(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.keyword) and node.arg:
        return {node.arg}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    return set()


_LENGTHS = {
    "T_max",
    "total_steps",
    "steps_per_epoch",
    "epochs",
    "total_iters",
    "milestones",
    "lr_lambda",
    "step_size",
    "num_training_steps",
    "num_warmup_steps",
}


@functools.lru_cache(maxsize=256)
def _parts(frame: Frame, kind: str) -> tuple[ast.AST, ...]:
    """Return what a scheduler's length is written as, with the variables and functions in it looked up once."""
    statement = statement_at(frame)
    if statement is None:
        return ()
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    named = [call for call in calls if _name(call.func) & {kind}]
    call = next(iter(named or calls), None)
    if call is None:
        return ()
    given: list[ast.AST] = [one for one in call.keywords if one.arg in _LENGTHS]
    given += call.args[1:] if kind != "OneCycleLR" else call.args[2:]
    found = list(given)
    for node in (inner for one in given for inner in ast.walk(one)):
        if isinstance(node, ast.Name):
            found += _definitions(frame, node.id)
        elif isinstance(node, ast.Attribute) and kind == "LambdaLR":  # self.rate
            found += [scope.node for scope in functions(node.attr, [frame.file])]
    return tuple(found)


def _definitions(frame: Frame, name: str) -> Iterator[ast.AST]:
    for scope in (function_at(frame), tree_of(frame.file)):
        if scope is None:
            continue
        before: ast.AST | None = None
        for node in ast.walk(scope):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                before = node
            elif isinstance(node, ast.Assign) and node.lineno < frame.line:
                targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
                before = node.value if name in targets else before
        if before is not None:
            yield before
            return


def stepped_in_text(run: Run, made: SchedulerMade) -> bool:
    """Say whether the source has a call that would advance a scheduler, though it was not reached."""
    frame = innermost(made.site)
    statement = statement_at(frame)
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    mine = {name for target in targets for node in ast.walk(target) for name in _name(node)} - {"self"}
    files = {one.file for event in run.of(SchedulerMade, Stepped) for one in event.site}
    for file in files:
        for node in ast.walk(tree_of(file) or ast.Module([], [])):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "step"
            ):
                continue
            names = {name for inner in ast.walk(node.func.value) for name in _name(inner)}
            if names & mine or any("sched" in name.lower() for name in names):
                return True
    return False
