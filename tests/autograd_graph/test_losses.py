"""What nodes say of losses: it agrees with the numbers of the forward pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradgate.autograd_graph import divisor_of, inputs_of, reduced_shape, reduction_of

X = nn.Parameter(torch.arange(12, dtype=torch.float64).reshape(4, 3) / 7)
TARGETS = torch.tensor([0, 2, -100, 1])


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)])
def test_the_divisor_of_a_smoothed_mean_is_that_of_the_loss_without_smoothing(
    smoothing: float, weight: Tensor | None
) -> None:
    def loss_fn(how: str, smoothing: float = smoothing) -> Tensor:
        return F.cross_entropy(X, TARGETS, weight, reduction=how, label_smoothing=smoothing)

    mean, total = loss_fn("mean"), loss_fn("sum")
    assert (reduction_of(mean.grad_fn), reduction_of(total.grad_fn)) == ("mean", "sum")
    assert inputs_of(mean.grad_fn) is inputs_of(total.grad_fn) is None  # one loss, not two terms
    divisor = divisor_of(mean.grad_fn)
    assert divisor is not None
    assert divisor_of(total.grad_fn) is None
    assert divisor == divisor_of(loss_fn("mean", 0.0).grad_fn)
    assert reduced_shape(mean.grad_fn) == (4,)
    torch.testing.assert_close(mean * divisor, total)
