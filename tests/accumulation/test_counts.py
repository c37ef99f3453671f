"""How many items: as given, or as torch's own loss divided by. Which losses are read: test_counts_left_out.py."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import CountError
from tests.accumulation.one_weight import one_weight, update_by
from tests.messages import raises
from tests.tensors import labels, ones, tensor, zeros


def class_weights() -> tuple[nn.Parameter, gg.Accumulator]:
    """A layer from one feature to two classes, at zero, and a step of size one."""
    weight = nn.Parameter(zeros(1, 2))
    return weight, gg.Accumulator(SGD([weight], lr=1.0))


def test_every_ignored_target_makes_a_count_of_zero_and_no_nan() -> None:
    weight, accumulator = class_weights()
    with accumulator.update() as update:
        for y in update.micro_batches([labels([-100, -100]), labels([0, -100])]):
            update.backward(F.cross_entropy(tensor([[1.0], [5.0]]) @ weight, y))
    assert update.count == 1
    assert weight.tolist() == [[0.5, -0.5]]  # the gradient of -log softmax at equal logits
    assert update.loss == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_16_bit_loss_counts_more_targets_than_it_can_save(dtype: torch.dtype) -> None:
    """It saves 2049 as 2048, and 513 in bfloat16 as 512."""
    weight, accumulator = class_weights()
    logits = (zeros(2049 + 3, 1) @ weight).to(dtype)
    with accumulator.update() as update:
        update.backward(F.cross_entropy(logits, labels([0] * 2049 + [-100] * 3)))
    assert update.count == 2049


@pytest.mark.parametrize(
    "count",
    [
        5,
        5.0,
        labels(5),
        labels([5]),
        tensor(5.0),
        tensor([[5.0]]),
        torch.tensor(5, dtype=torch.int16),
        tensor(5.0).requires_grad_(),
    ],
    ids=repr,
)
def test_a_count_is_a_number_or_a_tensor_of_one(count: object) -> None:
    weight, _, accumulator = one_weight()
    assert update_by(accumulator, weight, [(1.0, 15), (5.0, count)]).count == 20
    assert weight.item() == -2.0


@pytest.mark.parametrize(("said", "is_one"), [("mean", "sum"), ("sum", "mean")])
def test_a_loss_that_knows_better_contradicts_the_reduction(said: str, is_one: str) -> None:
    weight, _, accumulator = one_weight()
    loss = F.mse_loss(weight * ones(3), ones(3), reduction=is_one)
    complaint = f"loss is a {is_one} .MseLossBackward0., but reduction is '{said}'"
    with pytest.raises(CountError, match=complaint), accumulator.update() as update:
        update.backward(loss, count=3, reduction=said)  # type: ignore[arg-type]
    assert weight.item() == 0.0


def test_an_empty_micro_batch_needs_no_graph() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        update.micro_batches([0, 1])
        update.backward(tensor(math.nan), count=0, name="loss")
        update.backward(weight * 3, count=2, name="loss")
    assert (weight.item(), update.count, update.loss) == (-3.0, 2, 0.0)


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda x, y: F.cross_entropy(x, y, reduction="sum"),
        lambda x, y: F.cross_entropy(x, y, reduction="none").sum(),
        lambda x, y: F.mse_loss(x[:, 0], y.to(x.dtype), reduction="none").sum(),
    ],
)
def test_a_sum_of_torchs_own_losses_is_not_taken_for_a_mean(loss_fn: Callable[..., torch.Tensor]) -> None:
    weight = nn.Parameter(ones(2, 3))
    x, y = ones(4, 2) @ weight, torch.tensor([0, 1, 2, 0], device=weight.device)
    accumulator = gg.Accumulator(SGD([weight], lr=1.0))
    with raises(CountError, "a sum called a mean"), accumulator.update() as update:
        update.backward(loss_fn(x, y), count=4)
    with accumulator.update() as update:
        update.backward(loss_fn(ones(4, 2) @ weight, y), count=4, reduction="sum")
