"""Networks that are compared with the output of an average of their own weights."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradgate.autograd_graph import Graph
from gradgate.checker.recording.graph import compared_with_own_averages

NET = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
OLD = {name: torch.zeros_like(weight) for name, weight in NET.named_parameters()}
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def lerp(old: Tensor, weight: Tensor) -> Tensor:
    return torch.lerp(old, weight, 0.1)


def added(old: Tensor, weight: Tensor) -> Tensor:
    return torch.add(old * 0.9, weight, alpha=0.1)


def pulled(old: Tensor, weight: Tensor) -> Tensor:
    return old - (old - weight) / 10


def stepped(old: Tensor, weight: Tensor) -> Tensor:
    return weight - 0.1 * old


def scaled(old: Tensor, weight: Tensor) -> Tensor:
    del old
    return weight * 0.1


def output(average: object) -> Tensor:
    weights = {name: average(OLD[name], weight) for name, weight in NET.named_parameters()}  # type: ignore[operator]
    return functional_call(NET, weights, (X,))


@pytest.mark.parametrize("average", [lerp, added, pulled], ids=lambda average: average.__name__)
def test_the_output_of_averaged_weights_that_is_compared_with_the_network(average: object) -> None:
    now, target = NET(X), output(average)
    parameters = {id(parameter) for parameter in NET.parameters()}
    for loss in (
        nn.functional.mse_loss(now, target),
        (target - now).abs().mean(),
        nn.functional.cross_entropy(now, target.softmax(1)),
    ):
        assert set(Graph(compared_with_own_averages(Graph(loss))).leaves) == parameters
    for loss in (nn.functional.mse_loss(now, target.detach()), now.sum() + target.sum()):
        assert compared_with_own_averages(Graph(loss)) == []


@pytest.mark.parametrize("change", [stepped, scaled], ids=lambda change: change.__name__)
def test_weights_that_are_no_average(change: object) -> None:
    assert compared_with_own_averages(Graph(nn.functional.mse_loss(NET(X), output(change)))) == []


def test_a_penalty_on_the_distance_between_weights_and_their_average() -> None:
    distance = sum((weight - lerp(OLD[name], weight)).pow(2).sum() for name, weight in NET.named_parameters())
    assert compared_with_own_averages(Graph(nn.functional.mse_loss(NET(X), X[:, :3]) + distance)) == []
