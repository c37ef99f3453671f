"""How much time does an update take, relative to the loop that people write by hand?

The plain loop's time is the floor, because both run the same forward and backward passes and the same optimizer
step. The plain loop adds a division to each graph. gradgate adds one norm of the gradient per update (to find
infinities, and to report it), some bookkeeping in Python, and restricts each backward pass to the parameters that
the optimizer owns.
"""

import warnings
from collections.abc import Callable
from functools import partial

import torch
from _alternate import alternate, arguments, report, table
from _models import Batch, exact_update, loss_of, medium, plain_update, tiny
from torch import nn

import gradgate as gg
from gradgate.errors import CountWarning

Way = Callable[[], object]


def ways(model: nn.Module, batches: list[Batch], optimizer: torch.optim.Optimizer) -> dict[str, Way]:
    accumulator = gg.Accumulator(optimizer)

    def counts_left_out() -> None:
        with accumulator.update() as update:
            for batch in update.micro_batches(batches):
                update.backward(loss_of(model, batch))

    def unequal_counts() -> None:
        with accumulator.update() as update:
            for number, batch in enumerate(update.micro_batches(batches)):
                update.backward(loss_of(model, batch), count=batch[1].numel() * (1 + number % 3))

    def one_call() -> None:
        accumulator.step_window(lambda batch: loss_of(model, batch), batches)

    return {
        "plain loop, loss / k": partial(plain_update, model, batches, optimizer),
        "gradgate": partial(exact_update, model, batches, accumulator),
        "gradgate, unequal counts": unequal_counts,
        "gradgate, counts left out": counts_left_out,
        "gradgate, step_window": one_call,
    }


def two_ways(model: nn.Module, batches: list[Batch], optimizer: torch.optim.Optimizer) -> dict[str, Way]:
    """Return only the two variants that matter, so that a slow model gets more rounds."""
    return dict(list(ways(model, batches, optimizer).items())[:2])


def clipped(model: nn.Module, batches: list[Batch], optimizer: torch.optim.Optimizer) -> dict[str, Way]:
    accumulator = gg.Accumulator(optimizer, clip_norm=1.0)
    return {
        "plain loop, clipped": partial(plain_update, model, batches, optimizer, 1.0),
        "gradgate, clipped": partial(exact_update, model, batches, accumulator),
    }


def sections(device: str, rounds: int | None) -> list[str]:
    """Return a table for each model and optimizer."""
    if device == "cpu":
        torch.set_num_threads(1)
    warnings.simplefilter("ignore", CountWarning)  # the unequal counts are not those of the batches
    tables = []
    both = (("", ways), (", clip_norm", clipped))
    for name, make, usual, cases in (("tiny", tiny, 400, both), ("medium", medium, 12, (("", two_ways),))):
        for optimizer in (torch.optim.SGD, torch.optim.AdamW):
            torch.manual_seed(0)
            model, batches = make(device)
            for title, chosen in cases:
                results = alternate(
                    chosen(model, batches, optimizer(model.parameters(), lr=1e-4)),
                    rounds=rounds or usual,
                    warm_up=2 if make is medium else 5,
                    device=device,
                )
                tables.append(table(f"{name} model, {optimizer.__name__}{title}", results))
    return tables


def main() -> None:
    question = "Time per update against the plain loop"
    given = arguments(question)
    report(question, sections(given.device, given.rounds), given.write)


if __name__ == "__main__":
    main()
