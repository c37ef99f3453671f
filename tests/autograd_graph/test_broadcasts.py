"""Matrices that broadcasting made of two vectors are told from those that are meant."""

from collections.abc import Callable

import pytest
import torch

from gradgate.autograd_graph import Graph, broadcast_at

N = 6
LEAF = torch.randn(N, requires_grad=True)
ROW = torch.randn(N)


def shapes(loss: torch.Tensor) -> list[tuple[int, ...]]:
    graph = Graph(loss)
    users: dict[object, list[object]] = {}
    for node, following in graph.following.items():
        for child in following:
            users.setdefault(child, []).append(node)
    found = (broadcast_at(node, users) for node in graph.nodes)
    return [each[1] for each in found if each is not None]


def test_a_difference_of_two_shapes_is_found_below_the_mean() -> None:
    assert shapes(((LEAF[:, None] - ROW) ** 2).mean()) == [(N, N)]
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
    assert shapes(loss(LEAF[:, None] - ROW)) == [(N, N)]
    assert shapes(loss(LEAF - ROW)) == []
    assert shapes(loss(LEAF[:, None] - torch.randn(N, N))) == []


def test_a_matrix_that_is_also_used_as_a_whole_is_meant() -> None:
    difference = LEAF[:, None] - ROW
    assert shapes((difference**2).mean() + difference.softmax(1).max()) == []


def test_all_pairs_of_one_vector_are_meant() -> None:
    scores = LEAF * 2
    assert shapes((scores[:, None] - scores).abs().mean()) == []
