"""The graph behind a loss: nodes, leaves, order and paths."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradgate.autograd_graph import Graph, hidden_parameter


def random_loss(seed: int) -> tuple[list[nn.Parameter], Tensor]:
    """Return parameters, and a loss over random sums and products of them."""
    torch.manual_seed(seed)
    parameters = [nn.Parameter(torch.rand(2)) for _ in range(4)]
    values: list[Tensor] = list(parameters)
    for _ in range(8):
        first, second = (values[int(place)] for place in torch.randint(len(values), (2,)))
        values.append(first * second if torch.rand(()) < 0.5 else first + second)
    return parameters, values[-1].sum() + values[-2].sum()


def paths_by_hand(node: Any, counts: dict[int, int]) -> dict[int, int]:
    """Count the paths to each leaf by walking every one of them."""
    if hasattr(node, "variable"):
        counts[id(node.variable)] = counts.get(id(node.variable), 0) + 1
    for following, _ in node.next_functions:
        if following is not None:
            paths_by_hand(following, counts)
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_paths_order_and_users_agree_with_a_walk_by_hand(seed: int) -> None:
    parameters, loss = random_loss(seed)
    graph = Graph(loss)
    by_hand = paths_by_hand(loss.grad_fn, {})
    assert graph.paths() == by_hand
    assert graph.leaves.keys() == by_hand.keys()
    assert [parameter in graph for parameter in parameters] == [id(p) in by_hand for p in parameters]

    order = {node: place for place, node in enumerate(graph.in_order)}
    assert order.keys() == graph.following.keys()
    for node, following in graph.following.items():
        assert all(order[node] < order[child] for child in following)
    for used, users in graph.users.items():
        assert all(used in graph.following[user] for user in users)
        if used not in graph.leaf_nodes:
            continue
        path = graph.path_to(graph.leaf_nodes[used])
        assert path[0] is loss.grad_fn
        assert path[-2] is users[0]  # the nearest user
        assert all(after in graph.following[before] for before, after in pairwise(path))


class _DDPSink(torch.autograd.Function):
    """Ties tensors together as DistributedDataParallel does with find_unused_parameters."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def test_outputs_that_ddp_ties_together_are_followed_one_by_one() -> None:
    used, unused, joined, dropped = (nn.Parameter(torch.ones(2)) for _ in range(4))
    first = _DDPSink.apply(used * 2, unused * 2)
    # The second wrapper is met before the way through it to the first one's other output.
    second = _DDPSink.apply(first[0] + joined, dropped.exp())
    for loss in (second[0].sum(), first[0].sum() + second[0].sum(), second[0].sum() + first[0].sum()):
        graph = Graph(loss)
        assert [each in graph for each in (used, unused, joined, dropped)] == [True, False, True, False]
        found = torch.autograd.grad(
            loss, [used, unused, joined, dropped], allow_unused=True, retain_graph=True
        )
        assert [each is not None for each in found] == [True, False, True, False]
    crossed = _DDPSink.apply(first[1] + joined, dropped.exp())
    graph = Graph(first[0].sum() + crossed[0].sum())
    assert [each in graph for each in (used, unused, joined, dropped)] == [True, True, True, False]


def test_what_a_function_keeps_under_the_name_variable_is_no_leaf() -> None:
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.variable = torch.ones(1)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    weight = nn.Parameter(torch.ones(1))
    assert Graph(Keeps.apply(weight)).leaves.keys() == {id(weight)}


def test_hidden_parameters_are_named() -> None:
    layer, x = nn.Linear(1, 1), torch.ones(1, requires_grad=True)
    assert hidden_parameter(Graph(layer(x))) is None
    assert hidden_parameter(Graph(checkpoint(layer, x, use_reentrant=False))) is None
    output = checkpoint(layer, x, use_reentrant=True)  # torch 2.11 frees its node with the tensor
    hidden = hidden_parameter(Graph(output))
    assert hidden is not None
    assert hidden.node == "CheckpointFunctionBackward"
