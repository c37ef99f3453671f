"""Steps from a node to its inputs."""

from torch import Tensor

from gradgate.autograd_graph import inputs, only_input, ops, through
from tests.tensors import ones


def leaf(*shape: int) -> Tensor:
    return ones(*shape).requires_grad_()


def test_inputs_without_a_graph_are_left_out() -> None:
    x, y = leaf(2).exp(), leaf(2).sin()
    assert inputs((x * y).grad_fn) == [x.grad_fn, y.grad_fn]
    assert inputs((x * ones(2)).grad_fn) == [x.grad_fn]
    assert only_input((x * ones(2)).grad_fn) is x.grad_fn
    assert only_input((x * y).grad_fn) is None


def test_a_walk_through_names_stops_at_another_name_and_where_paths_meet() -> None:
    x, y = leaf(2).exp(), leaf(2).sin()
    assert through(x[None].squeeze().view(1, 2).grad_fn, ops.RESHAPES) is x.grad_fn
    product = x * y
    assert through(product.view(1, 2).grad_fn, ops.RESHAPES | {"MulBackward0"}) is product.grad_fn
    assert through(None, ops.RESHAPES) is None
