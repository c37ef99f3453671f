"""Nothing waits for the device before the block ends: losses and counts that lie on it are not read.

A tensor on the meta device has no numbers, so whoever reads one raises. A GPU says the same by
``torch.cuda.set_sync_debug_mode``.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradgate as gg

IGNORED = -100


class StopHere(Exception):  # noqa: N818 - nothing went wrong
    """Leaves the block where there is nothing to step on."""


def add_up(update: gg.Update, model: nn.Module, device: str) -> None:
    """A window of three micro-batches with counts on the device, in a sum, a mean, and left out."""
    for number in update.micro_batches(range(3)):
        x = torch.ones(4, 3, device=device)
        y = torch.zeros(4, dtype=torch.long, device=device)
        logits, count = model(x), (y != IGNORED).sum()
        update.backward(F.cross_entropy(logits, y, reduction="sum"), count=count, reduction="sum", name="sum")
        update.backward(F.cross_entropy(model(x), y) * (number + 1), count=count, name="mean")
        update.backward(F.cross_entropy(model(x), y), name="left out")


def test_nothing_is_read_inside_the_block() -> None:
    model = nn.Linear(3, 5, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, clip_norm=1.0, noise_scale=gg.NoiseScale())

    def stopped_before_the_end() -> None:
        with accumulator.update() as update:
            add_up(update, model, "meta")
            raise StopHere

    with pytest.raises(StopHere):
        stopped_before_the_end()


@pytest.mark.parametrize("read", [float, Tensor.item, bool], ids=["float", "item", "bool"])
def test_the_law_rejects_whoever_reads(read: object) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        read(torch.zeros((), device="meta"))  # type: ignore[operator]


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_gpu_is_not_waited_for_inside_the_block() -> None:
    model = nn.Linear(3, 5, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, clip_norm=1.0, noise_scale=gg.NoiseScale())
    with accumulator.update() as update:  # cuBLAS makes its workspace in the first pass
        add_up(update, model, "cuda")
    with accumulator.update() as update, no_waiting():
        add_up(update, model, "cuda")
    assert update.stepped


@pytest.mark.gpu
def test_a_whole_update_waits_for_no_gpu_where_nonfinite_gradients_are_stepped_on() -> None:
    model = nn.Linear(3, 5, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, clip_norm=1.0, nonfinite="step")
    x, y = torch.ones(4, 3, device="cuda"), torch.zeros(4, dtype=torch.long, device="cuda")

    def update_once() -> gg.Update:
        with accumulator.update() as update:
            for _ in update.micro_batches(range(2)):
                update.backward(F.cross_entropy(model(x), y), count=4)
        return update

    update_once()
    with no_waiting():
        update = update_once()
    assert update.grad_norm > 0
