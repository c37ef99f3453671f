"""Train a task in one way, and measure parameters after each update, time, memory and score."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import AdamW, Optimizer

from gradgate.planning import peak_memory

from .task import Task

Way = Callable[[nn.Module, Optimizer, Task], Iterator[float]]
MEASURED_UPDATES = 2  # the second one has optimizer state from the start


@dataclass(frozen=True)
class Run:
    """The result of training in one way."""

    parameters: list[Tensor]  # flattened, before the first and after each update
    seconds: float
    peak_bytes: int
    score: float


def train(way: Way, task: Task, on_update: Callable[[int, float], None]) -> Run:
    """Train from the task's initial weights; ``on_update`` is called with each update's number and loss."""
    peak_bytes = peak_of(way, task)  # separately, so that counting bytes doesn't slow down the timed run
    model, updates = start(way, task)
    parameters = [flat(model)]
    seconds = 0.0
    while True:
        begin = time.perf_counter()
        loss = next(updates, None)
        seconds += time.perf_counter() - begin
        if loss is None:
            break
        parameters.append(flat(model))
        on_update(len(parameters) - 1, loss)
    return Run(parameters, seconds, peak_bytes, task.score(model))


def start(way: Way, task: Task) -> tuple[nn.Module, Iterator[float]]:
    """Return a new model, and an iterator that trains it."""
    model = task.make_model()
    return model, way(model, AdamW(model.parameters(), lr=task.learning_rate), task)


def peak_of(way: Way, task: Task) -> int:
    """Return the peak memory of the first updates: parameters, gradients, Adam's state, activations."""
    with peak_memory() as memory:
        _, updates = start(way, task)
        for _ in islice(updates, MEASURED_UPDATES):
            pass
        del updates
    return memory.peak_bytes


def flat(model: nn.Module) -> Tensor:
    """Return a copy of all parameters as one vector."""
    return parameters_to_vector(model.parameters()).detach().clone()


def distances(run: Run, truth: Run) -> list[float]:
    """Return the distance of ``run`` from ``truth`` after each update, relative to how far ``truth`` has moved.

    Both lengths are Euclidean, over all parameters. At 0, the parameters are equal. At 1, the run is as far from
    the whole batch's parameters as these are from the initial weights.
    """
    first = truth.parameters[0]
    pairs: Sequence[tuple[Tensor, Tensor]] = list(zip(run.parameters[1:], truth.parameters[1:], strict=True))
    return [((p - q).norm() / (q - first).norm()).item() for p, q in pairs]
