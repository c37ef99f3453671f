"""Hugging Face Accelerate, as its guide to gradient accumulation shows it."""

from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size

from ._task import Task, Way


def train(task: Task, samples: int | None = None) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.window)
    model, optimizer, loader = accelerator.prepare(task.model, task.optimizer, task.loader(samples))
    for _ in range(task.epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(task.loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()


def train_with_counts(task: Task) -> None:
    """The recipe in the guide for samples of variable size: collect a window, count it, undo the division."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.window)
    model, optimizer, loader = accelerator.prepare(task.model, task.optimizer, task.loader())
    for _ in range(task.epochs):
        batches = list(loader)
        for start in range(0, len(batches), task.window):
            window = batches[start : start + task.window]
            items = sum(task.count(y) for _, y in window)
            for x, y in window:
                loss = task.loss(model(x), y, reduction="sum")
                accelerator.backward(loss * accelerator.gradient_accumulation_steps / items)
            optimizer.step()
            optimizer.zero_grad()


def train_what_fits(task: Task) -> None:
    @find_executable_batch_size(starting_batch_size=max(task.sizes))
    def run(samples: int) -> None:
        task.optimizer.zero_grad()  # where the guide makes model and optimizer anew
        train(task, samples)

    run()


WAYS = (
    Way(train),
    Way(train_with_counts, ("sizes", "tokens", "tail"), "its guide's recipe, counting by hand"),
    Way(train_what_fits, ("memory",), "find_executable_batch_size"),
)
