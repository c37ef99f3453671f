"""Measure a way of training: the gradients that its optimizer received, what it printed, and how long it took."""

import copy
import os
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from . import plain
from ._rows import ERRORS, TRACES, UNITS, timed
from ._task import Task, Way

SEEDS = range(5)
TOPICS = {"batch_norm": r"batch.?norm", "coupled": r"infonce|contrastive|in-batch|negatives|coupled"}
WARM_UP, UPDATES = 20, 300

Cell = dict[str, Any]  # kind, option, and what was measured: goes to another process as JSON


def measure(tool: ModuleType) -> dict[str, list[Cell]]:
    """Return the cells of each row: the tool with defaults, then with the options that affect this row."""
    rows: dict[str, list[Cell]] = {"time": [{"option": "", **seconds(tool)}]}  # first, in a fresh process
    for row in (*ERRORS, *TRACES):
        ways = [way for way in tool.WAYS if not way.option or row in way.rows]
        judge = errors if row in ERRORS else trace
        rows[row] = [{"option": way.option, **judge(row, way, tool)} for way in ways]
    return rows


def errors(row: str, way: Way, tool: ModuleType) -> Cell:
    found, sums, said = [], [], False
    for seed in SEEDS:
        task = make(row, seed, way, tool)
        truth, parts = whole_gradient(task), sum_of_parts(task) if row == "bf16" else None
        with received(task) as steps, heard() as words:
            try:
                way.train(task)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the result)
                return failed(error)
        (gradient,) = steps
        found.append(distance(gradient, truth))
        if parts is not None:
            sums.append(distance(gradient, parts))
        said |= bool(row in TOPICS and re.search(TOPICS[row], words[0], re.IGNORECASE))
    return {"kind": "error", "errors": found, "sums": sums, "said": said}


def trace(row: str, way: Way, tool: ModuleType) -> Cell:
    task = make(row, 0, way, tool)
    units = unit_gradients(task, UNITS[row])
    failure = {}
    with received(task) as steps, heard():
        try:
            way.train(task)
        except Exception as error:  # noqa: BLE001
            failure = failed(error)
    left = any(p.grad is not None and bool(p.grad.any()) for p in task.model.parameters())
    return {**failure, "kind": "trace", "steps": [behind(one, units) for one in steps], "left": left}


def failed(error: Exception) -> Cell:
    first = (str(error).splitlines() or [""])[0]
    return {"kind": "failed", "type": type(error).__name__, "words": first}


def make(row: str, seed: int, way: Way, tool: ModuleType) -> Task:
    torch.manual_seed(seed)
    task = {**ERRORS, **TRACES}[row]()
    if way.model is not None:
        task = replace(task, model=way.model())
    dtype = getattr(tool, "DTYPE", torch.float64)
    return task if row == "bf16" else task.to(dtype)


# -- gradients ------------------------------------------------------------------------------------------


@contextmanager
def received(task: Task) -> Iterator[list[Tensor]]:
    """Collect the gradients in ``.grad`` at each step.

    They are read after the step, because Lightning runs the last backward pass inside the step.
    """
    steps: list[Tensor] = []
    size = sum(parameter.numel() for parameter in task.model.parameters())

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradient = flat([p.grad for p in parameters])[:size]  # DeepSpeed pads its one long vector
        if gradient.any():  # and makes a step with zeros when it starts in bf16
            steps.append(gradient)

    handle = task.optimizer.register_step_post_hook(note)
    try:
        yield steps
    finally:
        handle.remove()


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors])


def gradient(task: Task, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return flat(torch.autograd.grad(task.loss(model(x), y), list(model.parameters())))


def whole_gradient(task: Task) -> Tensor:
    """The reference: the first window at once, in float64, at the same weights."""
    x, y = task.windows()[0]
    model = copy.deepcopy(task.model).double()
    return gradient(task, model, x.double() if x.is_floating_point() else x, y)


def sum_of_parts(task: Task) -> Tensor:
    """The mean of the micro-batches' gradients, each in the task's own dtype, added up in float64."""
    model = copy.deepcopy(task.model)
    parts = [gradient(task, model, x, y) for x, y in task.micro_batches()[: task.window]]
    return torch.stack(parts).mean(0)


def distance(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).abs().max() / truth.abs().max())


def unit_gradients(task: Task, samples: int) -> list[Tensor]:
    model = copy.deepcopy(task.model).double()
    return [gradient(task, model, x.double(), y) for x, y in task.micro_batches(samples)]


def behind(found: Tensor, units: list[Tensor]) -> list[float] | None:
    """Return start, stop and factor of the units whose mean this gradient is. A stop beyond the end wraps."""
    around = units + units
    for start in range(len(units)):
        for stop in range(start + 1, start + len(units) + 1):
            mean = torch.stack(around[start:stop]).mean(0)
            factor = float(found @ mean / (mean @ mean))
            if distance(found, factor * mean) < 1e-5:
                return [start, stop, factor]
    return None


# -- words and time -------------------------------------------------------------------------------------


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect everything printed to standard output and error, by warnings, loggers or otherwise."""
    words: list[str] = []
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as file, warnings.catch_warnings():
        warnings.simplefilter("always")
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield words
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in enumerate(kept, start=1):
                os.dup2(old, number)
                os.close(old)
            file.seek(0)
            words.append(file.read())


def seconds(tool: ModuleType) -> Cell:
    """Time each update against one of the plain loop that runs right after it in the same process.

    A step of the tool's optimizer ends its update and hands over to the plain loop, which has a model of
    its own. So the two take turns even if a trainer owns the loop.
    """
    other = plain.updates(timed(WARM_UP + UPDATES))
    task = timed(WARM_UP + UPDATES)
    mine, plains = [], []
    resumed = time.perf_counter()

    def hand_over(*_: object) -> None:
        nonlocal resumed
        stopped = time.perf_counter()
        with torch.enable_grad():
            next(other)
        end = time.perf_counter()
        mine.append(stopped - resumed)
        plains.append(end - stopped)
        resumed = time.perf_counter()

    task.optimizer.register_step_post_hook(hand_over)
    with heard():
        tool.WAYS[0].train(task)
    ratios = [a / b for a, b in zip(mine[WARM_UP:], plains[WARM_UP:], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    typical = statistics.median(plains[WARM_UP:])
    return {"kind": "time", "ratio": middle, "low": low, "high": high, "plain_seconds": typical}
