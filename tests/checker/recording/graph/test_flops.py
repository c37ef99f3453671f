"""FLOPs read from a graph are those that torch counts while it computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from gradgate.autograd_graph import Graph
from gradgate.checker.recording.graph import flops_of

CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "linear": lambda: (
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)),
        torch.randn(256, 64),
    ),
    "linear over tokens": lambda: (nn.Linear(64, 128), torch.randn(8, 40, 64)),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(8, 32, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 5, dilation=2)),
        torch.randn(2, 8, 32, 32),
    ),
    "transposed": lambda: (
        nn.Sequential(
            nn.ConvTranspose2d(64, 64, 4), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
        ),
        torch.randn(4, 64, 1, 1),
    ),
    "one dimension": lambda: (nn.Conv1d(16, 64, 7), torch.randn(2, 16, 100)),
}


def counted(y: Callable[[], Tensor]) -> tuple[float, float]:
    """Return torch's count of a forward and a backward pass."""
    with FlopCounterMode(display=False) as forward:
        loss = y().square().sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return float(forward.get_total_flops()), float(backward.get_total_flops())


def read(y: Tensor) -> tuple[float, float]:
    several = [flops_of(node) for node in Graph(y).following]
    return sum(forward for forward, _ in several), sum(sum(gradients) for _, gradients in several)


@pytest.mark.parametrize("frozen", ["nothing", "input", "weights"])
@pytest.mark.parametrize("case", CASES)
def test_both_passes_take_what_torch_counts(case: str, frozen: str) -> None:
    model, x = CASES[case]()
    x.requires_grad_(frozen != "input")
    model.requires_grad_(frozen != "weights")
    forward, backward = read(model(x))
    # 5 %: elementwise operations, which torch leaves out.
    assert (forward, backward) == pytest.approx(counted(lambda: model(x)), rel=0.05)


def test_elements_count_once_and_views_nothing() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    assert read(x.view(4, 3).t()) == (0, 0)
    assert read(x.view(4, 3).t().exp()) == (12, 12)
    assert read(x.sum()) == (1, 12)


def test_groups_divide_the_work() -> None:
    x = torch.randn(2, 16, 20, 20, requires_grad=True)
    for kind in (nn.Conv2d, nn.ConvTranspose2d):
        dense, grouped = ([*read(kind(16, 32, 3, groups=groups)(x))] for groups in (1, 4))
        assert [each / 4 for each in dense] == pytest.approx(
            grouped, rel=0.05
        )  # torch counts groups forward only


def test_attention_takes_two_products_and_five_back() -> None:
    q, k, v = (torch.randn(2, 4, size, 16, requires_grad=True) for size in (64, 128, 128))
    products = 2 * 4 * 2 * 64 * 128 * 16
    y = F.scaled_dot_product_attention(q, k, v)
    assert read(y) == pytest.approx((2 * products, 5 * products))
    k.requires_grad_(False)
    assert read(F.scaled_dot_product_attention(q, k, v))[1] == pytest.approx(5 * products * 2 / 3)
