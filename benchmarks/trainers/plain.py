"""The loop that people write by hand."""

from ._task import Task, Way


def updates(task: Task):
    for _ in range(task.epochs):
        for number, (x, y) in enumerate(task.loader(), start=1):
            loss = task.loss(task.model(x), y)
            (loss / task.window).backward()
            if number % task.window == 0:
                task.optimizer.step()
                task.optimizer.zero_grad()
                yield


def train(task: Task) -> None:
    for _ in updates(task):
        pass


WAYS = (Way(train),)
