"""What a value is compared with or added to."""

import pytest
import torch

from gradgate.autograd_graph import Graph
from gradgate.checker.recording.graph import sums_with_constants

LEAF = torch.randn(4, requires_grad=True)
DATA = torch.randn(4)


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        ((0.1 * LEAF - DATA).mean(), 1),
        (0.1 * LEAF.mean() + 2 * DATA.mean(), 1),
        ((LEAF - LEAF.exp()).mean(), 0),
        ((LEAF - DATA).square().mean(), 0),
    ],
    ids=["inside a mean", "of means", "both have a graph", "below a square"],
)
def test_a_constant_side_of_a_sum_is_found_below_linear_operations(loss: torch.Tensor, count: int) -> None:
    assert len(list(sums_with_constants(*Graph(loss).roots))) == count
