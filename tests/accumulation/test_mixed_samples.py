"""A window whose model mixes samples, or whose hooks clip each micro-batch, is warned of once."""

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


# -- hooks that clip ---------------------------------------------------------------------------------


def clamped(gradient: Tensor) -> Tensor:
    return gradient.clamp(-LIMIT, LIMIT)


def clipped(gradient: Tensor) -> Tensor:
    return gradient * (LIMIT / gradient.norm()).clamp(max=1.0)


@pytest.mark.parametrize("hook", [clamped, clipped])
def test_a_hook_that_clips_is_warned_of_once(hook: Change) -> None:
    model = model_of()
    for parameter in model.parameters():
        parameter.register_hook(hook)
    with warns(CoupledLossWarning, "a hook that clips", "'0.weight'") as said:
        train(model, model=model)
    assert len(said) == 1
    assert said[0].filename == __file__


LINEAR: dict[str, Callable[[Tensor], Tensor | None]] = {
    "logged": lambda gradient: None,
    "scaled": lambda gradient: gradient * 0.1,
    "reversed": lambda gradient: -gradient,
    "masked": lambda gradient: gradient * (torch.arange(gradient.shape[-1]) % 2),
    "centred": lambda gradient: gradient - gradient.mean(),
    "set to zero": lambda gradient: gradient * 0,
    "made finite": lambda gradient: gradient.nan_to_num(),
    "limited, but never reached": lambda gradient: gradient.clamp(-1e6, 1e6),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_hook_that_commutes_with_the_sum_is_silent(name: str) -> None:
    model = model_of()
    for parameter in model.parameters():
        parameter.register_hook(LINEAR[name])
    with no_warning():
        train(model, windows=3)


def test_a_window_of_one_micro_batch_may_be_clipped() -> None:
    model = model_of()
    model[0].weight.register_hook(clamped)
    with no_warning():
        train(model, lambda h: gg.clip_gradient(h, max_value=LIMIT), sizes=(6,))


def test_each_hook_runs_once_in_each_backward_pass_and_may_remove_itself() -> None:
    model, ran = model_of(), list[str]()
    model[0].weight.register_hook(lambda _: ran.append("stays"))
    handle = model[0].weight.register_hook(lambda _: (ran.append("goes"), handle.remove())[0])
    model[0].weight.register_post_accumulate_grad_hook(lambda _: ran.append("after"))
    train(model, windows=1)
    assert ran == ["stays", "goes", "after", "stays", "after", "stays", "after"]
