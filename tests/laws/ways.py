"""Every way that gradgate offers to make one update; and the ways that people get it wrong."""

import io

import torch
from torch.optim import Optimizer

import gradgate as gg
from tests.reference import Problem, Way, parts


def mean_and_count(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    with gg.Accumulator(optimizer).update() as update:
        for x, y in update.micro_batches(parts(task, cut)):
            update.backward(task.loss_mean(x, y), count=task.count(y))


def sum_and_count(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    with gg.Accumulator(optimizer).update() as update:
        for x, y in update.micro_batches(parts(task, cut)):
            update.backward(task.loss_sum(x, y), count=task.count(y), reduction="sum")


def count_as_a_tensor(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    with gg.Accumulator(optimizer).update() as update:
        for x, y in update.micro_batches(parts(task, cut)):
            update.backward(task.loss_mean(x, y), count=(y >= 0).sum())


def count_from_the_graph(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    with gg.Accumulator(optimizer).update() as update:
        for x, y in update.micro_batches(parts(task, cut)):
            update.backward(task.loss_mean(x, y))


def length_unknown(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    with gg.Accumulator(optimizer).update() as update:
        for x, y in update.micro_batches(part for part in parts(task, cut)):
            update.backward(task.loss_mean(x, y), count=task.count(y))


def one_call(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    gg.Accumulator(optimizer).step_window(lambda part: task.loss_mean(*part), parts(task, cut))


def out_of_memory_on_the_way(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    largest = max(cut)

    def loss_fn(part: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if 1 < len(part[0]) == largest:
            raise torch.OutOfMemoryError("as many samples as this do not fit")
        return task.loss_mean(*part)

    gg.Accumulator(optimizer, model=task.model).step_window(loss_fn, parts(task, cut))


def in_a_window(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    (window,) = gg.windows(iter(parts(task, cut)), size=len(cut))
    mean_and_count_of(task, gg.Accumulator(optimizer), window)


def with_a_clip_that_does_not_bite(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    mean_and_count_of(task, gg.Accumulator(optimizer, clip_norm=1e6), parts(task, cut))


def two_losses(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    with gg.Accumulator(optimizer).update() as update:
        for x, y in update.micro_batches(parts(task, cut)):
            loss, count = task.loss_mean(x, y), task.count(y)
            update.backward(loss * 0.25, count=count, retain_graph=True)
            update.backward(loss * 0.75, count=count)


def stopped_and_resumed(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    """Save after the middle micro-batch, throw the process's state away, go on from the saved file."""
    window, file, accumulator = parts(task, cut), io.BytesIO(), gg.Accumulator(optimizer)
    try:
        with accumulator.update() as update:
            for number, (x, y) in enumerate(update.micro_batches(window), 1):
                update.backward(task.loss_mean(x, y), count=task.count(y))
                if number == (len(window) + 1) // 2:
                    torch.save(accumulator.state_dict(), file)
                    raise SystemExit
    except SystemExit:
        file.seek(0)
    resumed = gg.Accumulator(optimizer)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    mean_and_count_of(task, resumed, window)


def mean_and_count_of(task: Problem, accumulator: gg.Accumulator, window: object) -> None:
    with accumulator.update() as update:
        for x, y in update.micro_batches(window):  # type: ignore[arg-type]
            update.backward(task.loss_mean(x, y), count=task.count(y))


EXACT: list[Way] = [
    mean_and_count,
    sum_and_count,
    count_as_a_tensor,
    count_from_the_graph,
    length_unknown,
    in_a_window,
    with_a_clip_that_does_not_bite,
    two_losses,
    stopped_and_resumed,
]

RETRYING: list[Way] = [one_call, out_of_memory_on_the_way]


def mean_of_means(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    """The usual loop: every micro-batch weighs the same, whatever it holds."""
    for x, y in parts(task, cut):
        (task.loss_mean(x, y) / len(cut)).nan_to_num().backward()
    optimizer.step()
    optimizer.zero_grad()


def sum_of_means(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    """The division forgotten."""
    for x, y in parts(task, cut):
        task.loss_mean(x, y).nan_to_num().backward()
    optimizer.step()
    optimizer.zero_grad()


def step_at_the_first(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    """`if i % N == 0`: the first micro-batch is stepped on alone, the rest leaks into the next window."""
    for number, (x, y) in enumerate(parts(task, cut)):
        (task.loss_sum(x, y) / task.count(task.y)).backward()
        if number % len(cut) == 0:
            optimizer.step()
            optimizer.zero_grad()


def clip_each(task: Problem, optimizer: Optimizer, cut: list[int]) -> None:
    """Clipped once per micro-batch, to a norm that the whole gradient does not reach."""
    for x, y in parts(task, cut):
        (task.loss_sum(x, y) / task.count(task.y)).backward()
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), 1e-2)
    optimizer.step()
    optimizer.zero_grad()


WRONG: list[Way] = [mean_of_means, sum_of_means, step_at_the_first, clip_each]
