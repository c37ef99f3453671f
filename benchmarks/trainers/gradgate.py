"""The same loop with gradgate."""

import gradgate as gg

from ._task import MicroBatch, Task, Way


def train(task: Task) -> None:
    accumulator = gg.Accumulator(task.optimizer)
    for _ in range(task.epochs):
        for window in gg.windows(task.loader(), size=task.window):
            with accumulator.update() as update:
                for x, y in update.micro_batches(window):
                    update.backward(task.loss(task.model(x), y), count=task.count(y))


def train_by_step(task: Task) -> None:
    accumulator = gg.Accumulator(task.optimizer)

    def loss_fn(micro_batch: MicroBatch):
        x, y = micro_batch
        return task.loss(task.model(x), y), task.count(y)

    for window in gg.windows(task.loader(), size=task.window):
        accumulator.step_window(loss_fn, window)


WAYS = (Way(train), Way(train_by_step, ("memory",), "accumulator.step"))
