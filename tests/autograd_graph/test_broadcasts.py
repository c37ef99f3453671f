"""Matrices that broadcasting made of two vectors are told from those that are meant."""

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
