"""Weights as layers initialize them are told from weights that were trained or computed."""

import pytest
import torch
from torch import nn

# private: scripts show it for two layers only; here it's tried on many seeds, and on values of other kinds
from gradgate.checker.recording._measures import is_as_initialized


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "layer", [lambda: nn.Linear(16, 2), lambda: nn.Linear(256, 100), lambda: nn.Conv2d(3, 8, 3)]
)
def test_layers_start_as_initialized(layer: object, seed: int) -> None:
    torch.manual_seed(seed)
    assert is_as_initialized(layer().weight)  # type: ignore[operator]


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(8, 16),
        nn.functional.normalize(torch.randn(8, 16), dim=1),
        torch.eye(8, 16),
        torch.zeros(8, 16),
        torch.full((8, 16), 0.2),
        nn.init.orthogonal_(torch.empty(8, 16)),
        0.02 * torch.randn(8, 16),
        torch.rand(16),
    ],
    ids=["normal", "prototypes", "identity", "zeros", "constant", "orthogonal", "small", "vector"],
)
def test_other_values_are_not(values: torch.Tensor) -> None:
    assert not is_as_initialized(values)
