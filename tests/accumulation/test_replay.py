"""Out of memory: roll back, cut finer, replay; the update is the one that the finer cut makes."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import TestCase

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import CountWarning
from tests.accumulation.one_weight import StopError, one_weight, stopped_by
from tests.messages import warns
from tests.tensors import RTOL, arange, labels, on_device, ones, rand, tensor

IGNORE_BATCH_NORM = pytest.mark.filterwarnings("ignore::gradgate.errors.BatchNormWarning")
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 20.00 MiB.\nSee documentation."


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("gradgate")
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(logging.NOTSET)


class Room(torch.autograd.Function):
    """The identity, for which memory runs out in forward or backward beyond a number of samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, most: int, where: str) -> Tensor:
        ctx.most, ctx.where = most, where
        if where == "forward" and len(x) > most:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.where == "backward" and len(gradient) > ctx.most:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return gradient, None, None


class Model(nn.Module):
    """Batch norm and dropout on either side of the place where memory runs out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = (nn.Linear(3, 3) for _ in range(2))
        self.norm, self.dropout = nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        self.room: tuple[int, str] = (1000, "nowhere")

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + len(x)  # a buffer that is put in the old one's place
        x = self.dropout(self.norm(self.first(x)))
        return self.last(Room.apply(x, *self.room))

    def loss(self, x: Tensor) -> Tensor:
        return self(x).pow(2).mean()


@IGNORE_BATCH_NORM
def test_a_module_that_came_later_is_rolled_back_too() -> None:
    body = nn.Linear(3, 3)
    optimizer = SGD(body.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=body)
    accumulator.step_window(lambda x: body(x).mean(), [torch.randn(4, 3)])
    head = Model()
    optimizer.add_param_group({"params": list(head.parameters())})
    accumulator.model = [body, head]
    head.room = (2, "forward")
    accumulator.step_window(lambda x: head(body(x)).mean(), [torch.randn(4, 3)])
    assert (head.seen, head.norm.num_batches_tracked) == (4, 2)


# -- how it is cut ----------------------------------------------------------------------------------


def fitting(most: int, seen: list[int], weight: Tensor) -> Callable[[Tensor], Tensor]:
    def loss_fn(x: Tensor) -> Tensor:
        seen.append(len(x))
        if len(x) > most:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return (weight * x).mean()

    return loss_fn


def test_the_size_is_halved_until_it_fits_and_is_remembered() -> None:
    weight, _, accumulator = one_weight()
    seen: list[int] = []
    loss_fn = fitting(3, seen, weight)
    assert accumulator.samples_that_fit is None
    update = accumulator.step_window(loss_fn, [arange(10), arange(2)])
    assert seen == [10, 5, 3, 2, 3, 2, 2]
    assert (update.count, update.micro_batch_count) == (12, 5)
    assert weight.item() == pytest.approx(-46 / 12, rel=RTOL)
    assert accumulator.samples_that_fit == 3
    seen.clear()
    accumulator.step_window(loss_fn, [arange(9)])
    assert seen == [3, 3, 3]


def test_it_is_said_what_was_done() -> None:
    weight, _, accumulator = one_weight()
    with TestCase().assertLogs("gradgate", logging.WARNING) as said:
        accumulator.step_window(fitting(2, [], weight), [arange(4)])
    assert [record.getMessage() for record in said.records] == [
        "step: out of memory with 4 samples; replaying the window with 2"
    ]


def test_the_size_that_fits_is_saved_and_loaded() -> None:
    weight, optimizer, accumulator = one_weight()
    accumulator.step_window(fitting(2, [], weight), [arange(4)])
    again = gg.Accumulator(optimizer, model=accumulator.model)
    again.load_state_dict(accumulator.state_dict())
    seen: list[int] = []
    again.step_window(fitting(2, seen, weight), [arange(4)])
    assert seen == [2, 2]


@dataclass
class Batch:
    x: Tensor
    scale: float = 2.0


# -- what cannot be cut, and what is not about memory -------------------------------------------


def test_the_cpu_allocators_error_counts_as_out_of_memory() -> None:
    weight, _, accumulator = one_weight()

    def loss_fn(x: Tensor) -> Tensor:
        if len(x) > 2:
            torch.empty(2**62, dtype=torch.uint8)  # the real one
        return (weight * x).mean()

    accumulator.step_window(loss_fn, [arange(4)])
    assert (weight.item(), accumulator.samples_that_fit) == (-1.5, 2)


@pytest.mark.parametrize("error", [StopError, RuntimeError, MemoryError, KeyboardInterrupt])
def test_other_errors_are_not_retried(error: type[BaseException]) -> None:
    weight, _, accumulator = one_weight()
    calls = []

    def loss_fn(x: Tensor) -> Tensor:
        calls.append(len(x))
        raise error("no matter of memory")

    with stopped_by(error):
        accumulator.step_window(loss_fn, [arange(4)])
    assert (calls, weight.grad, accumulator.samples_that_fit) == ([4], None, None)


def test_memory_that_runs_out_in_the_step_is_not_retried() -> None:
    """A finer cut would not help there."""
    weight, optimizer, accumulator = one_weight(undo_step=True)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    optimizer.register_step_post_hook(fail)
    calls: list[int] = []
    with pytest.raises(torch.OutOfMemoryError):
        accumulator.step_window(fitting(9, calls, weight), [arange(4)])
    assert (calls, weight.item(), weight.grad) == ([4], 0.0, None)


def test_a_resumed_window_that_runs_out_goes_on_where_it_was() -> None:
    weight, optimizer, accumulator = one_weight()
    window = [arange(4), arange(4) * 10, ones(3)]
    with stopped_by(StopError), accumulator.update() as update:
        for x in update.micro_batches(window):
            update.backward((weight * x).mean())
            saved = accumulator.state_dict()
            raise StopError
    resumed = gg.Accumulator(optimizer, model=accumulator.model)
    resumed.load_state_dict(saved)
    update = resumed.step_window(fitting(2, [], weight), window)
    assert update.count == 11
    assert weight.item() == pytest.approx(-69 / 11, rel=RTOL)


@pytest.mark.parametrize(
    "text",
    [
        "MPS backend out of memory (MPS allocated: 1 GB)",
        "CUDA error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
    ],
)
def test_other_words_for_it_count_too(text: str) -> None:
    weight, _, accumulator = one_weight()

    def loss_fn(x: Tensor) -> Tensor:
        if len(x) > 2:
            raise RuntimeError(text)
        return (weight * x).mean()

    accumulator.step_window(loss_fn, [arange(4)])
    assert accumulator.samples_that_fit == 2


# -- one batch, or a window -----------------------------------------------------------------------


def test_a_batch_of_time_first_sequences_is_split_where_it_is_said_to_hold_its_samples() -> None:
    weight, _, accumulator = one_weight()

    def loss_fn(x: Tensor) -> tuple[Tensor, int]:
        fitting(2, [], weight)(x.T)
        return (weight * x.sum(0)).mean(), x.shape[1]

    update = accumulator.step(loss_fn, arange(12).view(3, 4), batch_dim=1)
    assert (update.count, update.micro_batch_count) == (4, 2)
    assert weight.item() == pytest.approx(-66 / 4, rel=RTOL)


@pytest.mark.parametrize("window", [False, True])
def test_raw_samples_are_collated_after_they_were_split(window: bool) -> None:
    weight, _, accumulator = one_weight()
    samples = [{"value": float(value)} for value in range(5)]

    def collate(some: list[dict[str, float]]) -> Tensor:
        return tensor([each["value"] for each in some])

    if window:
        accumulator.step_window(fitting(2, [], weight), [samples[:4], samples[4:]], collate=collate)
    else:
        accumulator.step(fitting(2, [], weight), samples, collate=collate)
    assert weight.item() == pytest.approx(-2.0, rel=RTOL)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_an_accuracy_that_is_returned_as_the_count_is_warned_of(as_tensor: bool) -> None:
    weight, batches = nn.Parameter(ones(1)), [ones(4)]
    accumulator = gg.Accumulator(SGD([weight], lr=1.0))

    def counted(count: float) -> Callable[[Tensor], tuple[Tensor, Any]]:
        return lambda batch: ((batch * weight).exp().mean(), tensor(count) if as_tensor else count)

    with warns(CountWarning, "an accuracy as the count") as said:
        accumulator.step_window(counted(0.75), batches)
    assert {each.filename for each in said} == {__file__}
    for count in (1.0, 1.5, 4.0):  # a warning would be an error
        accumulator.step_window(counted(count), batches)


CLASS_WEIGHT = tensor([0.1, 0.2, 0.05])


def weighted_classes(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(scores, y, CLASS_WEIGHT), CLASS_WEIGHT[y].sum()


def test_class_weights_may_add_up_to_less_than_one() -> None:
    model = on_device(nn.Linear(2, 3))
    x, y = rand(6, 2), labels([0, 1, 2, 2, 1, 1])
    (truth,) = torch.autograd.grad(weighted_classes(model(x), y)[0], model.weight)
    before = model.weight.detach().clone()
    window = list(zip(x.split(2), y.split(2), strict=True))
    gg.Accumulator(SGD(model.parameters(), lr=1.0)).step_window(
        lambda micro: weighted_classes(model(micro[0]), micro[1]), window
    )  # a warning would be an error
    assert torch.allclose(before - model.weight.detach(), truth, rtol=0, atol=RTOL)
