"""What nodes say of losses: it agrees with the numbers of the forward pass."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradgate.autograd_graph import divisor_of, inputs_of, reduced_shape, reduction_of

X = nn.Parameter(torch.arange(12, dtype=torch.float64).reshape(4, 3) / 7)
TARGETS = torch.tensor([0, 2, -100, 1])
NUMBERS = torch.ones(4, 3, dtype=torch.float64)

LOSSES: dict[str, tuple[Callable[[str], Tensor], int, tuple[int, ...]]] = {
    "cross_entropy": (lambda how: F.cross_entropy(X, TARGETS, reduction=how), 3, (4,)),
    "mse_loss": (lambda how: F.mse_loss(X, NUMBERS, reduction=how), 12, (4, 3)),
    "huber_loss": (lambda how: F.huber_loss(X, NUMBERS, reduction=how), 12, (4, 3)),
    "bce": (lambda how: F.binary_cross_entropy_with_logits(X, NUMBERS, reduction=how), 12, (4, 3)),
    "multi_margin": (lambda how: F.multi_margin_loss(X, TARGETS.abs() % 3, reduction=how), 4, (4, 3)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_divisor_of_a_mean_is_what_lies_between_it_and_the_sum(name: str) -> None:
    loss_fn, divisor, shape = LOSSES[name]
    mean, total = loss_fn("mean"), loss_fn("sum")
    assert (reduction_of(mean.grad_fn), reduction_of(total.grad_fn)) == ("mean", "sum")
    assert reduction_of(loss_fn("none").grad_fn) is None
    assert reduction_of(loss_fn("none").sum().grad_fn) == "sum"
    assert divisor_of(mean.grad_fn) == divisor
    assert divisor_of(total.grad_fn) is None
    assert reduced_shape(mean.grad_fn) == shape
    torch.testing.assert_close(mean * divisor, total)


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


def test_a_plain_mean_has_a_divisor_and_no_reduction_of_a_loss() -> None:
    for mean in (X.mean(), X.mean((0, 1)), X.sum(1).mean(0)):
        assert reduction_of(mean.grad_fn) is None
        divisor = divisor_of(mean.grad_fn)
        assert divisor is not None
        torch.testing.assert_close(mean * divisor, X.sum())


A, B = (nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in (3.0, 5.0))

ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "sum with a factor": lambda a, b: torch.add(a, b, alpha=4),
    "difference with a factor": lambda a, b: torch.sub(a, b, alpha=4),
    "negative": lambda a, b: -a,
    "from a number": lambda a, b: 2 - a,
    "product": lambda a, b: a * 0.25,
    "product with a tensor": lambda a, b: torch.tensor(7.0, dtype=torch.float64) * a,
    "quotient": lambda a, b: a / 8,
    "view": lambda a, b: a.view(1),
    "the first of one": lambda a, b: a.view(1)[0],
    "expanded to one": lambda a, b: a.expand(1),
    "another type": lambda a, b: a.float(),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_factors_of_inputs_are_the_derivatives(name: str) -> None:
    a, b = A * 1.0, B * 1.0
    result = ARITHMETIC[name](a, b)
    inputs = inputs_of(result.grad_fn)
    assert inputs is not None
    found = {}
    for node, op, factor in inputs:
        value = 1.0 if factor is None else float(factor)
        found[node] = 1 / value if op == "div" else value
    gradients = torch.autograd.grad(result.sum(), [a, b], allow_unused=True)
    if name == "the first of one":  # a chain of two
        assert found == {result.grad_fn.next_functions[0][0]: 1.0}  # type: ignore[union-attr]
        return
    for input_, gradient in zip((a, b), gradients, strict=True):
        assert found.get(input_.grad_fn) == (None if gradient is None else gradient.item())


@pytest.mark.parametrize(
    "result",
    [
        lambda: A * B,
        lambda: NUMBERS[0, 0] / (A * 1.0),
        lambda: (A * 1.0).exp(),
        lambda: X.select(0, 1).select(0, 2),
        lambda: X.mean(),
    ],
    ids=["learned weight", "divisor", "exp", "one number of several", "mean"],
)
def test_anything_else_begins_a_term(result: Callable[[], Tensor]) -> None:
    assert inputs_of(result().grad_fn) is None
