"""The last weights of a loss are those above which nothing else multiplies and nothing is trained.

A loss drives a layer's outputs one way if it compares them with nothing, or with one constant.
"""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradgate.autograd_graph import Graph, driven, last_weights

INPUT = torch.randn(4, 6, requires_grad=True)


def addresses(loss: torch.Tensor) -> list[int]:
    return [weight.untyped_storage().data_ptr() for weight in last_weights(Graph(loss))]


def test_the_head_is_last_and_the_layer_before_it_is_not() -> None:
    body, head = (nn.Linear(6, 6).requires_grad_(False) for _ in range(2))
    loss = nn.functional.cross_entropy(head(body(INPUT).relu()), torch.tensor([0, 1, 2, 3]))
    assert addresses(loss) == [head.weight.untyped_storage().data_ptr()]


def test_a_convolution_may_be_last() -> None:
    head = nn.Conv1d(6, 2, 1).requires_grad_(False)
    assert addresses(head(INPUT.T[None]).square().mean()) == [head.weight.untyped_storage().data_ptr()]


def test_below_a_trained_scale_nothing_is_last() -> None:
    head, scale = nn.Linear(6, 3).requires_grad_(False), nn.Parameter(torch.ones(3))
    assert addresses((scale * head(INPUT)).sum()) == []


def test_a_loss_without_a_product_has_none() -> None:
    assert addresses(INPUT.square().mean()) == []


def test_a_checkpoint_is_not_computed_again_to_read_its_weights() -> None:
    head, runs = nn.Linear(6, 3).requires_grad_(False), []

    def part(x: torch.Tensor) -> torch.Tensor:
        runs.append(len(x))
        return head(x)

    loss = checkpoint(part, INPUT, use_reentrant=False).square().mean()
    assert addresses(loss) == []
    assert len(runs) == 1


CRITIC = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1, bias=False))
ONE_WAY = {
    "a mean": lambda score: -score.mean(),
    "scaled": lambda score: score.mean() * torch.tensor(65536.0),
    "a softplus": lambda score: nn.functional.softplus(-score).mean(),
    "a hinge": lambda score: (1 - score).relu().mean(),
    "the smaller of two": lambda score: -torch.minimum(score, 2 * score).mean(),
    "one label": lambda score: nn.functional.binary_cross_entropy_with_logits(score, torch.ones(4, 1)),
    "one target": lambda score: nn.functional.mse_loss(score, torch.full((4, 1), 0.9)),
}
TO_DATA = {
    "labels": lambda score: nn.functional.binary_cross_entropy_with_logits(score, torch.eye(4)[:, :1]),
    "targets": lambda score: nn.functional.mse_loss(score, torch.arange(4.0)[:, None]),
    "distances": lambda score: (score - torch.arange(4.0)[:, None]).abs().mean(),
    "weights": lambda score: (score * torch.arange(4.0)[:, None]).mean(),
    "classes": lambda score: nn.functional.cross_entropy(score.T, torch.tensor([2])),
}


@pytest.mark.parametrize("kind", ONE_WAY)
def test_a_loss_without_data_drives_the_last_layer(kind: str) -> None:
    assert list(driven(Graph(ONE_WAY[kind](CRITIC(INPUT))))) == [CRITIC[2].weight]


@pytest.mark.parametrize("kind", TO_DATA)
def test_data_says_how_far(kind: str) -> None:
    assert list(driven(Graph(TO_DATA[kind](CRITIC(INPUT))))) == []
