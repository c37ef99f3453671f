"""Matrices that broadcasting made of two vectors are told from those that are meant."""

from collections.abc import Callable

import pytest
import torch

from gradgate.autograd_graph import Graph
from gradgate.checker.recording.graph import broadcast_at

N = 6
LEAF = torch.randn(N, requires_grad=True)
COLUMN = torch.randn(N, 1, requires_grad=True)
ROW = torch.randn(N)


def shapes(loss: torch.Tensor) -> list[tuple[int, ...]]:
    graph = Graph(loss)
    found = (broadcast_at(node, graph.users) for node in graph.nodes)
    return [shape for _, shape, column in filter(None, found) if column is None]


def test_a_difference_of_two_shapes_is_found_below_the_mean() -> None:
    assert shapes(((COLUMN - ROW) ** 2).mean()) == [(N, N)]
    assert shapes(((LEAF - ROW) ** 2).mean()) == []


def huber(difference: torch.Tensor) -> torch.Tensor:
    near = 0.5 * difference**2
    return torch.where(difference.abs() < 1, near, difference.abs() - 0.5).mean()


def clamped(difference: torch.Tensor) -> torch.Tensor:
    far = difference.abs()
    near = far.clamp(max=1.0)
    return (0.5 * near * near + (far - near)).sum()


def pinball(difference: torch.Tensor) -> torch.Tensor:
    return torch.maximum(0.9 * difference, -0.1 * difference).mean()


def log_cosh(difference: torch.Tensor) -> torch.Tensor:
    return difference.cosh().log().mean()


def product(difference: torch.Tensor) -> torch.Tensor:
    return (difference * difference).mean()


def charbonnier(difference: torch.Tensor) -> torch.Tensor:
    return (difference.square() + 1e-3).sqrt().mean()


@pytest.mark.parametrize("loss", [huber, clamped, pinball, log_cosh, product, charbonnier])
def test_a_loss_that_uses_the_difference_several_times(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert shapes(loss(COLUMN - ROW)) == [(N, N)]
    assert shapes(loss(LEAF - ROW)) == []
    assert shapes(loss(COLUMN - torch.randn(N, N))) == []


def test_a_matrix_that_is_also_used_as_a_whole_is_meant() -> None:
    difference = COLUMN - ROW
    assert shapes((difference**2).mean() + difference.softmax(1).max()) == []


def test_all_pairs_of_one_vector_are_meant() -> None:
    scores = LEAF * 2
    assert shapes((scores[:, None] - scores).abs().mean()) == []


def test_a_column_made_of_a_vector_is_told_apart_except_in_a_loss_of_torch() -> None:
    scores = LEAF * 2
    assert shapes((scores[:, None] - ROW).abs().mean()) == []
    with pytest.warns(UserWarning, match="target size"):
        assert shapes(torch.nn.functional.mse_loss(scores[:, None], ROW)) == [(N, N)]


def test_a_loss_that_compares_the_same_values_in_pairs_means_all_pairs() -> None:
    scores, others = COLUMN * 2, COLUMN * 3
    to_data = (scores - ROW).abs().mean()  # whether the data is (N,) or (1, N), the graph does not tell
    assert shapes(to_data) == [(N, N)]
    assert shapes(to_data - 0.5 * (scores - scores.T).abs().mean()) == []
    assert shapes(to_data - 0.5 * (scores.view(-1, 1) - others.T).abs().mean()) == []
    assert shapes(to_data - 0.5 * (scores - others).abs().mean()) == [(N, N)]


def test_values_picked_by_the_index_of_an_action_keep_its_dimension() -> None:
    picked = COLUMN.expand(N, 3).gather(1, torch.zeros(N, dtype=torch.long).unsqueeze(1))
    assert shapes(torch.nn.functional.smooth_l1_loss(*torch.broadcast_tensors(picked, ROW))) == [(N, N)]
    assert shapes((picked.squeeze(1) - ROW).square().mean()) == []
