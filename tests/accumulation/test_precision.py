"""16-bit parameters: wide sums, and optimizers that take them, against one float64 truth."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

import gradgate as gg
from tests.accumulation.one_weight import StopError, stopped_by
from tests.reference import error, received

MICRO_BATCHES, UPDATES = 64, 3
ROUNDED_ONCE = 2**-8  # bfloat16 keeps 8 bits

Made = Callable[[list[nn.Parameter]], Optimizer]

WIDE: dict[str, Made] = {
    "SGD": lambda p: SGD(p, lr=0.1),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "momentum, foreach": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "AdamW": lambda p: AdamW(p, lr=0.1),
    "AdamW, foreach": lambda p: AdamW(p, lr=0.1, foreach=True),
    "Adam, amsgrad": lambda p: Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1),
    "Adam, maximize": lambda p: Adam(p, lr=0.1, maximize=True),
    "Adam, rate as a tensor": lambda p: Adam(p, lr=torch.tensor(0.1)),
    "Adagrad": lambda p: Adagrad(p, lr=0.1),
    "Adadelta": Adadelta,
    "Adamax, foreach": lambda p: Adamax(p, foreach=True),
    "NAdam": NAdam,
    "RAdam": RAdam,
    "RMSprop": lambda p: RMSprop(p, centered=True, momentum=0.9),
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,
    "Muon": torch.optim.Muon,
}
FUSED: dict[str, Made] = {
    "SGD, fused": lambda p: SGD(p, lr=0.1, fused=True),
    "AdamW, fused": lambda p: AdamW(p, lr=0.1, fused=True),
}


class SomebodysSGD(SGD):
    """Not one of torch's own, so it is not handed a type that it may not expect."""


def weight_in(dtype: torch.dtype) -> nn.Parameter:
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(8, 4).bfloat16().to(dtype))


def window() -> list[Tensor]:
    """Gradients that bfloat16 holds exactly, so that only their sum can be off."""
    torch.manual_seed(1)
    return list(torch.randn(MICRO_BATCHES, 8, 4).bfloat16() + 0.5)


def exact_mean() -> Tensor:
    return torch.stack(window()).double().mean(0)


def ours(weight: nn.Parameter, accumulator: gg.Accumulator) -> gg.Update:
    with accumulator.update() as update:
        for gradient in update.micro_batches(window()):
            update.backward((weight.float() * gradient).sum(), count=3)
    return update


def plain(weight: nn.Parameter, optimizer: Optimizer) -> None:
    for gradient in window():
        ((weight.float() * gradient).sum() / MICRO_BATCHES).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", WIDE)
def test_64_bfloat16_micro_batches_reach_the_optimizer_as_their_exact_mean(name: str) -> None:
    weight = weight_in(torch.bfloat16)
    optimizer = WIDE[name]([weight])
    accumulator = gg.Accumulator(optimizer)
    with received(optimizer) as steps:
        for _ in range(UPDATES):
            ours(weight, accumulator)
    for step in steps:
        assert error(step, [exact_mean()]) < 64 * 2**-24  # the length of the sum, in float32
    assert weight.dtype == torch.bfloat16
    assert weight.isfinite().all()
    assert weight.grad_dtype == torch.bfloat16


@pytest.mark.parametrize(
    "made", [*FUSED.values(), lambda p: SomebodysSGD(p, lr=0.1)], ids=[*FUSED, "somebody's"]
)
def test_an_optimizer_that_wants_one_type_receives_the_sum_rounded_once(made: Made) -> None:
    weight = weight_in(torch.bfloat16)
    optimizer = made([weight])
    with received(optimizer) as steps:
        ours(weight, gg.Accumulator(optimizer))
    assert torch.equal(steps[0][0], exact_mean().float().bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_weight_of_a_16_bit_loss_is_not_rounded(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = SGD([weight], lr=0.1)
    with received(optimizer) as steps, gg.Accumulator(optimizer).update() as update:
        # The second pass weighs 1/3 of the first, which neither dtype holds.
        for gradient, count in update.micro_batches([([0.0, 1.0], 3), ([1.0, 1.0], 1)]):
            update.backward((weight.to(dtype) * torch.tensor(gradient, dtype=dtype)).sum(), count=count)
    assert error(steps[0], [torch.tensor([0.25, 1.0])]) < 2**-22


def test_a_plain_bfloat16_loop_is_off_by_far_more() -> None:
    weight = weight_in(torch.bfloat16)
    optimizer = SGD([weight], lr=0.1)
    with received(optimizer) as steps:
        plain(weight, optimizer)
    found = error(steps[0], [exact_mean()])
    assert found > 1000 * 64 * 2**-24
    assert found > ROUNDED_ONCE / 2


def trajectory(name: str, dtype: torch.dtype, step: Callable[[nn.Parameter, Optimizer], Any]) -> list[Tensor]:
    """The parameter and the optimizer's moments after some updates."""
    weight = weight_in(dtype)
    optimizer = (WIDE | FUSED)[name]([weight])
    for _ in range(UPDATES):
        step(weight, optimizer)
    moments = [v for k, v in optimizer.state[weight].items() if isinstance(v, Tensor) and k != "step"]
    return [weight.detach(), *moments]


def exactly(weight: nn.Parameter, optimizer: Optimizer) -> None:
    weight.grad = exact_mean().to(weight.dtype)
    optimizer.step()


@pytest.mark.parametrize("name", ["momentum", "AdamW, foreach", "AdamW, fused"])
def test_updates_follow_float64_and_a_plain_loops_moments_do_not(name: str) -> None:
    expected = trajectory(name, torch.float64, exactly)
    accumulators: dict[int, gg.Accumulator] = {}

    def step(weight: nn.Parameter, optimizer: Optimizer) -> None:
        ours(weight, accumulators.setdefault(id(optimizer), gg.Accumulator(optimizer)))

    found, usual = trajectory(name, torch.bfloat16, step), trajectory(name, torch.bfloat16, plain)
    # The parameter is rounded to bfloat16 after each update: that much is its own.
    assert error(found[:1], expected[:1]) < UPDATES * ROUNDED_ONCE
    fused = "fused" in name
    for ours_, theirs, truth in zip(found[1:], usual[1:], expected[1:], strict=True):
        assert ours_.dtype == (torch.bfloat16 if fused else torch.float32)
        assert error([ours_], [truth]) < (UPDATES * ROUNDED_ONCE if fused else 1e-5)
        assert error([theirs], [truth]) > (0 if fused else 100 * 1e-5)


@pytest.mark.parametrize("name", ["momentum", "AdamW, fused"])
def test_wide_sums_decay(name: str) -> None:
    weight = weight_in(torch.bfloat16)
    optimizer = (WIDE | FUSED)[name]([weight])
    accumulator = gg.Accumulator(optimizer, clear=gg.decay(0.5))
    with received(optimizer) as steps:
        for _ in range(3):
            ours(weight, accumulator)
    for step, times in zip(steps, [1, 1.5, 1.75], strict=True):
        assert error(step, [exact_mean() * times]) < (ROUNDED_ONCE if "fused" in name else 1e-5)


def test_a_window_that_is_given_up_leaves_the_type_as_it_was() -> None:
    weight = weight_in(torch.bfloat16)
    accumulator = gg.Accumulator(AdamW([weight]))
    with stopped_by(StopError), accumulator.update() as update:
        update.backward(weight.sum(), count=1)
        assert weight.grad_dtype == weight.grad.dtype == torch.float32
        raise StopError
    assert weight.grad is None
    assert weight.grad_dtype == torch.bfloat16


def test_float16_frozen_and_float32_parameters_can_stand_side_by_side() -> None:
    half, frozen, single = nn.Linear(3, 3).half(), nn.Linear(3, 3).bfloat16(), nn.Linear(3, 3)
    frozen.requires_grad_(False)
    parameters = [*half.parameters(), *frozen.parameters(), *single.parameters()]
    optimizer = Adam(parameters, lr=0.1)
    accumulator = gg.Accumulator(optimizer, clip_norm=1.0)
    for _ in range(2):
        with received(optimizer) as steps, accumulator.update() as update:
            for x in update.micro_batches(torch.randn(3, 2, 3).unbind()):
                out = single(frozen(half(x.half()).bfloat16()).float())
                update.backward(out.pow(2).mean())
    dtypes = [None if gradient is None else gradient.dtype for gradient in steps[0]]
    assert dtypes == [torch.float32] * 2 + [None] * 2 + [torch.float32] * 2
    frozen.requires_grad_(True)
    with received(optimizer) as steps, accumulator.update() as update:
        update.backward(frozen(torch.ones(1, 3).bfloat16()).float().mean())
    assert steps[0][2].dtype == torch.float32


# -- moments that were made or loaded narrow ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["momentum", "AdamW, foreach", "RMSprop"])
def test_a_run_that_began_with_a_plain_loop_goes_on(name: str) -> None:
    weight = weight_in(torch.bfloat16)
    optimizer = WIDE[name]([weight])
    plain(weight, optimizer)
    accumulator = gg.Accumulator(optimizer)
    with received(optimizer) as steps:
        ours(weight, accumulator)
    assert error(steps[0], [exact_mean()]) < 1e-5


@pytest.mark.parametrize("made_first", [True, False])
@pytest.mark.parametrize("name", ["momentum", "AdamW, fused", "Adam, amsgrad"])
def test_a_run_goes_on_from_a_checkpoint(name: str, made_first: bool) -> None:
    """Bit for bit, if the accumulator was there when the optimizer's state was loaded; else rounded once."""
    weight = weight_in(torch.bfloat16)
    optimizer = (WIDE | FUSED)[name]([weight])
    accumulator = gg.Accumulator(optimizer)
    ours(weight, accumulator)
    again = nn.Parameter(weight.detach().clone())
    other = (WIDE | FUSED)[name]([again])
    saved = copy.deepcopy(optimizer.state_dict())
    if made_first:
        resumed = gg.Accumulator(other)
        other.load_state_dict(saved)
    else:
        other.load_state_dict(saved)
        resumed = gg.Accumulator(other)
    for _ in range(2):
        ours(weight, accumulator)
        ours(again, resumed)
    if made_first:
        assert torch.equal(again, weight)
        for key, value in optimizer.state[weight].items():
            assert torch.equal(other.state[again][key], value)
    else:
        assert error([again.detach()], [weight.detach().double()]) < 3 * ROUNDED_ONCE
