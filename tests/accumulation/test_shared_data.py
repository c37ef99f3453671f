"""When memory runs out, data that all samples share is not split, even if it is as long as the batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradgate as gg
from gradgate.errors import BudgetError
from tests.messages import raises
from tests.tensors import RTOL, randn

N = 6  # samples, and as many classes, features and positions
Batch = dict[str, Tensor]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.query(x) @ x.transpose(1, 2) + mask
        return scores.softmax(-1) @ self.value(x)  # type: ignore[no-any-return]


def weighted_targets() -> tuple[nn.Module, Batch, Callable[[nn.Module, Batch], Any]]:
    batch = {"x": randn(N, 3), "y": (randn(N, N) > 0).to(randn(1)), "weight": randn(N).square() * 5}

    def loss_fn(model: nn.Module, part: Batch) -> Any:
        logits = model(part["x"])
        loss = F.binary_cross_entropy_with_logits(logits, part["y"], pos_weight=part["weight"])
        return loss, part["y"].numel()

    return nn.Linear(3, N), batch, loss_fn


def masked_attention() -> tuple[nn.Module, Batch, Callable[[nn.Module, Batch], Any]]:
    batch = {"x": randn(N, N, 3), "y": randn(N, 1), "weight": torch.full((N, N), -20.0).triu(1).to(randn(1))}

    def loss_fn(model: nn.Module, part: Batch) -> Any:
        out = model(part["x"], part["weight"]).square().mean((1, 2))[:, None]
        return (out - part["y"]).square().mean(), len(part["y"])

    return Attention(), batch, loss_fn


TASKS = [weighted_targets, masked_attention]


def error(task: Callable[[], Any], fits: int, **options: Any) -> float:
    """Return the largest difference between an update and the gradient of the whole batch."""
    torch.manual_seed(0)
    model, batch, loss_fn = task()
    model.to(batch["x"])
    truth = torch.autograd.grad(loss_fn(model, batch)[0], list(model.parameters()))
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def limited(part: Batch) -> Any:
        if len(part["x"]) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss_fn(model, part)

    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0), model=model)
    accumulator.step(limited, batch, **options)
    moved = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
    return max(float((a - b).abs().max()) for a, b in zip(moved, truth, strict=True))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("fits", [1, 5])
def test_what_may_be_shared_is_asked_for_before_the_first_replay(task: Any, fits: int) -> None:
    with pytest.raises(BudgetError, match=r'cannot tell whether batch\["weight"\] holds one entry'):
        error(task, fits)
    assert error(task, N) <= 10 * RTOL  # a batch that fits is never split


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("fits", [1, 5])
def test_shared_data_that_is_named_reaches_every_micro_batch_whole(task: Any, fits: int) -> None:
    assert error(task, fits, batch_dim={"weight": None}) <= 10 * RTOL


def test_one_sample_that_does_not_fit_says_where_samples_were_counted() -> None:
    model = nn.Linear(3, 1)
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0), model=model)

    def loss_fn(part: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    # two images of one row each, by name: not two samples, but one sample of two fields
    images = {"first": torch.ones(1, 3), "second": torch.ones(1, 3)}
    with raises(BudgetError, "does not fit", "CUDA out of memory.", 'batch["first"]'):
        accumulator.step(loss_fn, images)
    with raises(BudgetError, "does not fit", "CUDA out of memory.", "as the entries of batch"):
        accumulator.step(loss_fn, list(images.values()), collate=torch.cat)
