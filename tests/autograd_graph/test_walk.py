"""The graph behind a loss: nodes, leaves, order and paths."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradgate.autograd_graph import Graph, hidden_parameter


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


def test_a_shortest_path_is_found() -> None:
    weight = nn.Parameter(torch.ones(2))
    loss = (weight.exp().log().sin() + weight).sum()
    names = [node.name() for node in Graph(loss).path_to(weight)]
    assert names == ["SumBackward0", "AddBackward0", "torch::autograd::AccumulateGrad"]


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
