"""The last weights of a loss are those above which nothing else multiplies and nothing is trained."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradgate.autograd_graph import Graph, last_weights

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
