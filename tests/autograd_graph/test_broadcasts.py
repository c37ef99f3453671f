"""Matrices that broadcasting made of two vectors are told from those that are meant."""

import pytest
import torch

from gradgate.autograd_graph import Graph, broadcast_at, weighed_by_pairs

N = 6
LEAF = torch.randn(N, requires_grad=True)
ROW, COLUMN = torch.randn(N), torch.randn(N, 1)


def found(loss: torch.Tensor, read: object) -> list[object]:
    graph = Graph(loss)
    users: dict[object, list[object]] = {}
    for node, following in graph.following.items():
        for child in following:
            users.setdefault(child, []).append(node)
    return [shape for node in graph.nodes if (shape := read(node, users)) is not None]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("matrix", "weighs"),
    [
        (ROW - COLUMN, True),
        ((ROW - COLUMN) / 3 + 1, True),
        (ROW - ROW[:, None], False),
        (torch.randn(N, N), False),
        (ROW.expand(N, N), False),
        (COLUMN.expand(N, N), False),
        (torch.zeros(N, N), False),
        (ROW * COLUMN, False),
    ],
    ids=["two vectors", "scaled", "all pairs", "a matrix", "one row", "one column", "zero", "a product"],
)
def test_a_matrix_that_weighs_log_probabilities(matrix: torch.Tensor, weighs: bool) -> None:
    loss = -(LEAF.log_softmax(0) * matrix).mean()
    assert found(loss, weighed_by_pairs) == ([(N, N)] if weighs else [])


def test_values_that_are_no_log_probabilities_may_be_weighed_by_any_matrix() -> None:
    assert found((LEAF.tanh() * (ROW - COLUMN)).mean(), weighed_by_pairs) == []


def test_a_difference_of_two_shapes_is_found_below_the_mean() -> None:
    assert [shape for _, shape in found(((LEAF[:, None] - ROW) ** 2).mean(), broadcast_at)] == [(N, N)]
    assert found(((LEAF - ROW) ** 2).mean(), broadcast_at) == []
