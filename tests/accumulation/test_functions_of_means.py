"""A nonlinear function of a mean is warned of once; functions of single items and of parameters are not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import CountError, CoupledLossWarning
from tests.messages import raises, warns
from tests.reference import assert_same
from tests.silence import no_warning

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def dice(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found = model(x).softmax(1)
    return 1 - (2 * (found * y).sum() + 1) / (found.sum() + y.sum() + 1)


def one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses = [F.mse_loss(model(sample), label).sqrt() for sample, label in zip(x, y, strict=True)]
    return sum(losses, torch.zeros(())) / len(losses)


def error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


FUNCTIONS: dict[str, Loss] = {
    "root": lambda model, x, y: error(model, x, y).sqrt(),
    "root with epsilon": lambda model, x, y: torch.sqrt((model(x) - y).square().mean() + 1e-6),
    "norm": lambda model, x, y: (model(x) - y).norm(),
    "dice": dice,
    "cross entropy and dice": lambda model, x, y: (
        F.cross_entropy(model(x), y.argmax(1)) + 0.5 * dice(model, x, y)
    ),
    "perplexity": lambda model, x, y: F.cross_entropy(model(x), y.argmax(1)).exp(),
    "flooding": lambda model, x, y: (error(model, x, y) - 0.1).abs() + 0.1,
    "free bits": lambda model, x, y: error(model, x, y) + model(x).square().mean().clamp(min=0.5),
    "variance": lambda model, x, y: error(model, x, y) - 0.1 * model(x).var(),
    "product of means": lambda model, x, y: error(model, x, y) * model(x).abs().mean(),
}
APART: dict[str, Loss] = {
    "mean": error,
    "root of each item": lambda model, x, y: (model(x) - y).square().mean(1).sqrt().mean(),
    "norm of each item": lambda model, x, y: (model(x) - y).norm(dim=1).mean(),
    "a function for each item": one_by_one,
    "learned weight": lambda model, x, y: (
        (-model.log_variance).exp() * error(model, x, y) + model.log_variance  # type: ignore[operator]
    ),
    "norm of the weights": lambda model, x, y: error(model, x, y) + 0.1 * next(model.parameters()).norm(),
    "divided by a count": lambda model, x, y: (model(x) - y).square().sum() / y.numel(),
    "masked mean": lambda model, x, y: ((model(x) - y).square() * (y > 0)).sum() / (y > 0).sum(),
}


def train(loss_fn: Loss, count: int | None = None) -> None:
    model = Model()
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        with accumulator.update() as update:
            for x in update.micro_batches(torch.randn(9, 4).split(3)):
                y = F.one_hot(torch.arange(len(x)) % 3, 3).to(x.dtype)
                update.backward(loss_fn(model, x, y), count=len(x) if count is None else count)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_a_mean_is_warned_of_once(name: str) -> None:
    with warns(CoupledLossWarning, "a function of a mean") as said:
        train(FUNCTIONS[name])
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_count_is_asked_for_a_function_of_a_mean(name: str) -> None:
    model, x, y = Model(), torch.randn(4, 4), F.one_hot(torch.arange(4) % 3, 3).float()
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1))
    with raises(CountError, "a function of a mean, without a count"), accumulator.update() as update:
        update.backward(FUNCTIONS[name](model, x, y))
    with raises(CountError, "a function of a mean, without a count"):  # no advice to return a number of items
        accumulator.step(lambda x: FUNCTIONS[name](model, x, y), x)


@pytest.mark.parametrize("name", APART)
def test_functions_of_items_and_of_parameters_are_not(name: str) -> None:
    with no_warning():
        train(APART[name])


def test_a_coupled_loss_of_the_window_s_sums_is_exact() -> None:
    """The advice of the warning."""
    model = Model().double()
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    (expected,) = torch.autograd.grad(FUNCTIONS["root"](model, x, y), [model.layer.weight])
    before = model.layer.weight.detach().clone()

    def squares(batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        inputs, targets = batch
        return {"sum": (model(inputs) - targets).square().sum(), "count": torch.tensor(targets.numel())}

    accumulator = gg.Accumulator(torch.optim.SGD([model.layer.weight], lr=1.0))
    with accumulator.update() as update:
        parts = zip(x.split([5, 3]), y.split([5, 3]), strict=True)
        update.backward_coupled(
            squares, list(parts), lambda sums: (sums["sum"].sum() / sums["count"].sum()).sqrt()
        )
    assert_same([before - model.layer.weight.detach()], [expected])
