"""A loss that no split makes exact is warned of once, at the user's line; one that treats items apart is not.

That is a loss over pairs of a micro-batch, or a nonlinear function of its mean.
"""

import linecache
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


class Model(nn.Module):
    """Two towers, of which the right one sees the same data, and a learned weight of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 4)
        self.log_variance = nn.Parameter(torch.zeros(()))


Loss = Callable[[Model, Tensor], Tensor]


def numbers(x: Tensor) -> Tensor:
    return torch.arange(len(x))


def targets(x: Tensor) -> Tensor:
    return F.one_hot(numbers(x) % 4, 4).to(x.dtype)


def error(m: Model, x: Tensor) -> Tensor:
    return F.mse_loss(m.left(x), targets(x))


def two_directions(m: Model, x: Tensor) -> Tensor:
    scores = F.normalize(m.left(x), dim=1) @ F.normalize(m.right(x), dim=1).T / 0.1
    return (F.cross_entropy(scores, numbers(x)) + F.cross_entropy(scores.T, numbers(x))) / 2


def dice(m: Model, x: Tensor) -> Tensor:
    likely, y = m.left(x).softmax(1), targets(x)
    return 1 - (2 * (likely * y).sum() + 1) / (likely.sum() + y.sum() + 1)


def one_by_one(m: Model, x: Tensor) -> Tensor:
    losses = [F.mse_loss(m.left(row), y).sqrt() for row, y in zip(x, targets(x), strict=True)]
    return sum(losses, torch.zeros(())) / len(losses)


PAIRS: dict[str, Loss] = {
    "info_nce": lambda m, x: F.cross_entropy(m.left(x) @ m.right(x).T / 0.07, numbers(x)),
    "clip": two_directions,
    "einsum": lambda m, x: F.cross_entropy(torch.einsum("id,jd->ij", m.left(x), m.right(x)), numbers(x)),
    "siglip": lambda m, x: (
        -F.logsigmoid((m.left(x) @ m.right(x).T) * (2 * torch.eye(len(x)) - 1)).sum(1).mean()
    ),
    "distances": lambda m, x: F.cross_entropy(-torch.cdist(m.left(x), m.right(x)), numbers(x)),
    "uniformity": lambda m, x: torch.exp(-2 * torch.cdist(m.left(x), m.left(x))).mean().log(),
}
FUNCTIONS: dict[str, Loss] = {
    "root": lambda m, x: error(m, x).sqrt(),
    "root with epsilon": lambda m, x: torch.sqrt((m.left(x) - targets(x)).square().mean() + 1e-6),
    "norm": lambda m, x: (m.left(x) - targets(x)).norm(),
    "dice": dice,
    "cross entropy and dice": lambda m, x: F.cross_entropy(m.left(x), numbers(x) % 4) + 0.5 * dice(m, x),
    "perplexity": lambda m, x: F.cross_entropy(m.left(x), numbers(x) % 4).exp(),
    "flooding": lambda m, x: (error(m, x) - 0.1).abs() + 0.1,
    "free bits": lambda m, x: error(m, x) + m.left(x).square().mean().clamp(min=0.5),
    "variance": lambda m, x: error(m, x) - 0.1 * m.left(x).var(),
    "product of means": lambda m, x: error(m, x) * m.left(x).abs().mean(),
}
COUPLED = {
    **dict.fromkeys(PAIRS, "a loss that compares its items"),
    **dict.fromkeys(FUNCTIONS, "a function of a mean"),
}
APART: dict[str, Loss] = {
    "mean": error,
    "cosine": lambda m, x: (1 - F.cosine_similarity(m.left(x), m.right(x))).mean(),
    "scores": lambda m, x: F.binary_cross_entropy_with_logits(
        (m.left(x) * m.right(x)).sum(1), torch.ones(len(x))
    ),
    "triplet": lambda m, x: F.triplet_margin_loss(m.left(x), m.right(x), m.left(x).detach() * 0),
    "prototypes": lambda m, x: F.cross_entropy(m.left(x) @ torch.ones(4, 4), numbers(x) % 4),
    "root of each item": lambda m, x: (m.left(x) - targets(x)).square().mean(1).sqrt().mean(),
    "norm of each item": lambda m, x: (m.left(x) - targets(x)).norm(dim=1).mean(),
    "a function for each item": one_by_one,
    "learned weight": lambda m, x: (-m.log_variance).exp() * error(m, x) + m.log_variance,
    "norm of the weights": lambda m, x: error(m, x) + 0.1 * m.left.weight.norm(),
    "divided by a count": lambda m, x: (m.left(x) - targets(x)).square().sum() / targets(x).numel(),
    "masked mean": lambda m, x: (
        ((m.left(x) - targets(x)).square() * (targets(x) > 0)).sum() / (targets(x) > 0).sum()
    ),
}


def train(loss_fn: Loss, sizes: tuple[int, ...] = (4, 4)) -> None:
    model = Model()
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        with accumulator.update() as update:
            for x in update.micro_batches(torch.randn(sum(sizes), 3).split(sizes)):
                update.backward(loss_fn(model, x), count=len(x))


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_that_no_split_makes_exact_is_warned_of_once(name: str) -> None:
    with warns(CoupledLossWarning, COUPLED[name]) as said:
        train((PAIRS | FUNCTIONS)[name])
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize("name", APART)
def test_a_loss_that_treats_items_apart_is_not(name: str) -> None:
    with no_warning():
        train(APART[name])


def test_a_single_sample_shows_no_pairs_so_a_later_micro_batch_does() -> None:
    with warns(CoupledLossWarning, "a loss that compares its items") as said:
        train(PAIRS["info_nce"], (4, 1, 4, 4))
    assert len(said) == 1
    with no_warning():
        train(PAIRS["info_nce"], (1, 1))


def test_the_warning_names_the_users_line_however_deep_gradgate_calls_the_loss() -> None:
    model = Model()
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    loss_fn = lambda x: (PAIRS["info_nce"](model, x), len(x))  # noqa: E731
    with warns(CoupledLossWarning, "a loss that compares its items") as said:
        accumulator.step_window(loss_fn, [torch.randn(4, 3)] * 2)  # here
    assert linecache.getline(__file__, said[0].lineno).endswith("# here\n")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_count_is_asked_for_a_function_of_a_mean(name: str) -> None:
    model, x = Model(), torch.randn(4, 3)
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1))
    with raises(CountError, "a function of a mean, without a count"), accumulator.update() as update:
        update.backward(FUNCTIONS[name](model, x))
    with raises(CountError, "a function of a mean, without a count"):  # no advice to return a number of items
        accumulator.step(lambda x: FUNCTIONS[name](model, x), x)


def test_a_coupled_loss_of_the_window_s_sums_is_exact() -> None:
    """The advice of the warning."""
    model, x = Model().double(), torch.randn(8, 3, dtype=torch.float64)
    (expected,) = torch.autograd.grad(F.mse_loss(model.left(x), x.new_ones(8, 4)).sqrt(), [model.left.weight])
    before = model.left.weight.detach().clone()

    def squares(part: Tensor) -> dict[str, Tensor]:
        return {"sum": (model.left(part) - 1).square().sum(), "count": torch.tensor(4 * len(part))}

    accumulator = gg.Accumulator(torch.optim.SGD([model.left.weight], lr=1.0))
    accumulator.step_coupled(
        squares, list(x.split([5, 3])), lambda sums: (sums["sum"].sum() / sums["count"].sum()).sqrt()
    )
    assert_same([before - model.left.weight.detach()], [expected])
