"""A batch of 256 is wanted and doesn't fit. How do tools find a size that fits, and is it still the same update?

Memory is a limit on the bytes that tensors hold at once. An operation that exceeds it raises what torch's CPU
allocator raises. 40 samples fit together with the gradients that accumulation keeps; without these, 186 fit.
Accelerate runs if it is installed, as its guide shows it. Lightning's BatchSizeFinder was tried and left out: it
keeps the tensors of its trials and runs out of memory later, which says little under an artificial limit.

    python benchmarks/finding_the_size.py [--write]
"""

import importlib.util
import io
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import torch
from _alternate import arguments, report
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

import gradgate as gg
from gradgate.planning import peak_memory

BATCH, FITS = 256, 40  # wanted, and about as many as fit
_SMALL = 4096  # bytes: allocations up to this size always succeed


class Limit(peak_memory):
    """Limited memory: an allocation beyond it raises."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.failures = 0

    def changed(self, size: int, key: int) -> None:
        super().changed(size, key)
        if size > _SMALL and self.live_bytes > self.most:
            self.failures += 1
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")


@dataclass
class Task:
    """The input of every tool. Records the passes that were started and the gradient of the step."""

    model: nn.Module
    x: Tensor
    y: Tensor
    passes: int = 0
    stepped: list[Tensor] | None = None
    when: float = 0.0

    def optimizer(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        optimizer.register_step_pre_hook(lambda *_: self.note())
        return optimizer

    def note(self) -> None:
        if self.stepped is None:
            self.when = time.perf_counter()
            with _disable_current_modes():  # the benchmark makes these copies, not the tool
                self.stepped = [one.grad.clone() for one in self.model.parameters() if one.grad is not None]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.passes += 1
        return F.cross_entropy(self.model(x), y)


def make_task() -> Task:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)]
    return Task(nn.Sequential(*layers).double(), torch.randn(BATCH, 64).double(), torch.randint(10, (BATCH,)))


def by_plan(task: Task, limit: Limit) -> int:
    optimizer = task.optimizer()
    gradients = sum(one.numel() * one.element_size() for one in task.model.parameters())

    def loss_fn(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        return task.loss(*batch), len(batch[1])

    # The limit applies to new tensors: to gradients, but not to parameters.
    budget = limit.most + gradients
    plan = gg.plan(loss_fn, (task.x, task.y), budget_bytes=budget)
    task.passes = 0  # until here on fake tensors
    with limit:
        gg.Accumulator(optimizer).step(loss_fn, (task.x, task.y), plan=plan)
    return len(plan.parts[0].indices)


def by_halves(task: Task, limit: Limit) -> int:
    """Without a plan, gradgate halves the micro-batch that did not fit, and replays."""
    accumulator = gg.Accumulator(task.optimizer(), model=task.model)
    with limit:
        accumulator.step(lambda batch: (task.loss(*batch), len(batch[1])), (task.x, task.y))
    return accumulator.samples_that_fit or BATCH


def by_accelerate(task: Task, limit: Limit) -> int:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=BATCH)
    def run(samples: int) -> int:
        optimizer = task.optimizer()
        optimizer.zero_grad()
        for x, y in zip(task.x.split(samples), task.y.split(samples), strict=True):
            task.loss(x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return samples

    with limit:
        found: int = run()
    return found


WAYS: dict[str, tuple[str, Callable[[Task, Limit], int]]] = {
    "gradgate, by plan": ("gradgate", by_plan),
    "gradgate without a plan": ("gradgate", by_halves),
    "Accelerate, find_executable_batch_size": ("accelerate", by_accelerate),
}


def measure(way: Callable[[Task, Limit], int]) -> str:
    task = make_task()
    whole = torch.autograd.grad(task.loss(task.x, task.y), list(task.model.parameters()))
    gradients = sum(one.numel() * one.element_size() for one in whole)
    with peak_memory() as memory:
        task.loss(task.x[:FITS], task.y[:FITS]).backward()
    task.model.zero_grad()
    limit = Limit(memory.peak_bytes + gradients)
    task.passes = 0
    began = time.perf_counter()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        size = way(task, limit)
    largest = max(float(one.abs().max()) for one in whole)
    received = task.stepped or []
    error = max(float((a - b).abs().max()) for a, b in zip(received, whole, strict=True)) / largest
    asked = "yes" if error < 1e-10 else f"no: off by {error:.2g} of the largest gradient"
    return f"{task.passes} | {limit.failures} | {(task.when - began) * 1e3:.0f} | {size} | {asked} |"


def main() -> None:
    question = "A batch of 256 in the memory of 40 beside gradients: what is tried, what fails, what is found"
    given = arguments(question)
    torch.set_num_threads(1)
    rows = [
        "| way | passes begun | out of memory | ms to the first update | size | the update of the batch? |",
        "|---|---|---|---|---|---|",
    ]
    for name, (package, way) in WAYS.items():
        found = importlib.util.find_spec(package) is not None
        if found:
            measure(way)  # a warm-up: imports, and code that is compiled on first use
        rows.append(f"| {name} | {measure(way) if found else 'not installed | | | | |'}")
    report(question, ["\n".join(rows) + "\n"], given.write)


if __name__ == "__main__":
    main()
