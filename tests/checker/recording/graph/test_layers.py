"""The leaves that layers multiply by."""

import torch
import torch.nn.functional as F

# private: only the readers of a loss's input need the weight of a layer
from gradgate.checker.recording.graph._layers import layer_weight
from tests.tensors import ones


def test_a_layer_is_a_product_with_a_leaf_or_its_transpose() -> None:
    weight, x = ones(3, 3).requires_grad_(), ones(2, 3)
    for made in (
        x @ weight,
        x @ weight.transpose(0, 1),
        F.linear(x, weight, ones(3)),
        torch.mv(weight, x[0]),
    ):
        assert layer_weight(made.grad_fn) is weight
    for made in (x @ weight.exp(), x * weight[0], torch.sigmoid(weight)):
        assert layer_weight(made.grad_fn) is None
