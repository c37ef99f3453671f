"""A loss drives a layer's outputs one way if it compares them with nothing, or with one constant."""

import pytest
import torch
from torch import nn

from gradgate.autograd_graph import Graph
from gradgate.checker.recording.graph import driven

INPUT = torch.randn(4, 6, requires_grad=True)
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
