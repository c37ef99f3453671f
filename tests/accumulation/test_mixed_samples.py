"""A window whose model mixes samples, or clips the gradient of each micro-batch, is warned of once."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import gradgate as gg
from gradgate.errors import CoupledLossWarning
from tests.messages import warns
from tests.silence import no_warning

LIMIT = 0.01

Change = Callable[[Tensor], Tensor]


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def train(
    net: nn.Module,
    between: Change = lambda h: h,
    *,
    sizes: tuple[int, ...] = (4, 3, 5),
    windows: int = 2,
    count: bool = True,
    **options: object,
) -> gg.Accumulator:
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=0.1), **options)  # type: ignore[arg-type]
    for _ in range(windows):
        with accumulator.update() as update:
            for x, y in update.micro_batches(parts(sizes)):
                loss = F.cross_entropy(net[2](between(net[:2](x))), y)  # type: ignore[index]
                update.backward(loss, count=len(x) if count else None)
    return accumulator


def parts(sizes: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(size, 4, dtype=torch.float64), torch.arange(size) % 3) for size in sizes]


# -- mixed samples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [True, False])
def test_mixed_samples_are_warned_of_once(count: bool) -> None:
    with warns(CoupledLossWarning, "a model that mixes samples") as said:
        train(model_of(), lambda h: h - h.mean(0), count=count)
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize("sizes", [(6,), (1, 1, 1)], ids=["one micro-batch", "one sample each"])
def test_without_a_split_between_samples_there_is_no_warning(sizes: tuple[int, ...]) -> None:
    with no_warning():
        train(model_of(), lambda h: h - h.mean(0), sizes=sizes)


def test_who_counts_operations_counts_those_of_training_alone() -> None:
    counted = []
    for between in (lambda h: h - h.mean(0), lambda h: h - h.mean(1, keepdim=True)):
        with no_warning(), FlopCounterMode(display=False) as flops:
            train(model_of(), between)
        counted.append(flops.get_total_flops())
    assert counted[0] == counted[1]


# -- gates that clip ---------------------------------------------------------------------------------


def test_a_window_of_one_micro_batch_may_be_clipped() -> None:
    model = model_of()
    with no_warning():
        train(model, lambda h: gg.clip_gradient(h, max_value=LIMIT), sizes=(6,))
