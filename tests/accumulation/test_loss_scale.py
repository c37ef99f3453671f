"""A GradScaler's full path: scale, unscale, clip, step or skip, update; and one scale per window."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

import gradgate as gg
from gradgate.errors import GraphError, NonfiniteError, UpdateError
from tests.accumulation.one_weight import StopError, add, one_weight, stopped_by, update_by
from tests.messages import raises
from tests.tensors import DEVICE, tensor

SCALE = 2.0**10


def scaler(**options: object) -> GradScaler:
    return GradScaler(DEVICE.type, **{"init_scale": SCALE, **options})  # type: ignore[arg-type]


def test_a_gate_clips_the_gradient_without_the_loss_scale() -> None:
    for enabled in (True, False):
        weight, _, accumulator = one_weight(scaler=scaler() if enabled else None)
        with accumulator.update() as update:
            update.backward(3.0 * gg.clip_gradient(weight, max_value=1.0), count=1)
        assert weight.item() == -1.0

    def encode(x: Tensor) -> Tensor:
        return gg.clip_gradient(weight * x, max_norm=1.0)

    weight, _, accumulator = one_weight(scaler=scaler())
    with accumulator.update() as update:
        update.backward_coupled(encode, [tensor([1.0]), tensor([2.0])], lambda z: 3.0 * z.sum())
    assert weight.item() == -3.0


def test_an_overflow_is_skipped_halves_the_scale_and_schedules_nothing() -> None:
    weight, optimizer, _ = one_weight()
    schedule, scale = ExponentialLR(optimizer, 0.5), scaler(growth_interval=1)
    accumulator = gg.Accumulator(optimizer, scaler=scale, scheduler=schedule)
    update = update_by(accumulator, weight, [(1.0, 1), (float("inf"), 1)])
    assert not update.stepped
    assert (weight.item(), weight.grad, schedule.last_epoch, scale.get_scale()) == (0.0, None, 0, SCALE / 2)
    assert update_by(accumulator, weight, [(1.0, 1), (3.0, 1)]).stepped
    assert (weight.item(), schedule.last_epoch, scale.get_scale()) == (-2.0, 1, SCALE)


def test_an_overflow_can_be_an_error_and_then_leaves_the_scaler_alone() -> None:
    weight, _, accumulator = one_weight(scaler=scaler(), nonfinite="raise")
    update_by(accumulator, weight, [(1.0, 1)])
    before = copy.deepcopy(accumulator._settings.scaler.state_dict())
    with pytest.raises(NonfiniteError):
        update_by(accumulator, weight, [(float("nan"), 1)])
    assert accumulator._settings.scaler.state_dict() == before
    update_by(accumulator, weight, [(1.0, 1)])
    assert weight.item() == -2.0


def test_a_real_overflow_in_float16_finds_its_way_down_to_a_scale_that_fits() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8).to(DEVICE)
    optimizer = SGD(model.parameters(), lr=1e-3)
    scale = scaler(init_scale=2.0**24)
    accumulator = gg.Accumulator(optimizer, scaler=scale)
    stepped = []
    for _ in range(18):
        with accumulator.update() as update:
            for x in update.micro_batches(torch.randn(4, 4, 8, device=DEVICE).unbind()):
                with torch.autocast(DEVICE.type, torch.float16):
                    loss = (model(x) * 30).float().pow(2).mean()
                update.backward(loss)
        stepped.append(update.stepped)
    assert not stepped[0]
    assert stepped[-1]
    assert sorted(stepped) == stepped
    assert scale.get_scale() == 2.0 ** (24 - stepped.count(False))


@pytest.mark.parametrize("when", ["before the end", "between micro-batches"])
def test_a_scale_that_moves_while_the_window_is_open_is_refused(when: str) -> None:
    scale = scaler()
    weight, _, accumulator = one_weight(scaler=scale)
    with stopped_by(UpdateError), accumulator.update() as update:
        for number in update.micro_batches([0, 1]):
            update.backward(weight * 1, count=1)
            if number == (when == "before the end"):
                scale.update(new_scale=SCALE / 4)
    assert (weight.item(), weight.grad) == (0.0, None)
    update_by(accumulator, weight, [(1.0, 1)])
    assert weight.item() == -1.0


def test_another_accumulators_update_with_the_same_scaler_moves_it_and_is_noticed() -> None:
    scale = scaler(growth_interval=1)
    a, _, first = one_weight(scaler=scale)
    b, _, second = one_weight(scaler=scale)
    with stopped_by(UpdateError), first.update() as update:
        add(update, a, [(1.0, 1)])
        update_by(second, b, [(1.0, 1)])
    assert (a.item(), b.item()) == (0.0, -1.0)


def test_several_optimizers_share_one_scaler() -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    accumulator = gg.Accumulator([SGD([a], lr=1.0), SGD([b], lr=1.0)], scaler=scaler())
    update_by(accumulator, a + b, [(1.0, 3), (5.0, 1)])
    assert (a.item(), b.item()) == (-2.0, -2.0)
    # One of them overflows: neither steps.
    with accumulator.update() as update:
        update.backward(a + b * float("inf"), count=1)
    assert (a.item(), b.item(), update.stepped) == (-2.0, -2.0, False)


def test_a_fused_optimizer_is_not_unscaled_twice() -> None:
    weight = nn.Parameter(torch.zeros(2))
    accumulator = gg.Accumulator(
        SGD([weight], lr=1.0, fused=True), scaler=GradScaler("cpu", init_scale=SCALE)
    )
    update_by(accumulator, weight.sum(), [(1.0, 1), (3.0, 1)])
    assert weight.tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("empty", [1, 2])
def test_a_window_that_was_saved_before_its_first_item_goes_on(empty: int) -> None:
    window = [(5.0, 0)] * empty + [(1.0, 2), (4.0, 1)]
    weight, optimizer, accumulator = one_weight(scaler=scaler())
    with stopped_by(StopError), accumulator.update() as update:
        add(update, weight, window[:empty])
        saved = accumulator.state_dict()
        raise StopError
    resumed = gg.Accumulator(optimizer, scaler=scaler())
    resumed.load_state_dict(saved)
    update_by(resumed, weight, window)
    assert weight.item() == pytest.approx(-2.0)


def test_an_optimizer_whose_gradients_are_all_carried_over_steps_too() -> None:
    """The scaler has nothing to judge in them: they were judged a window ago."""
    weights = [nn.Parameter(tensor(0.0)) for _ in range(2)]
    optimizers = [SGD([weight], lr=1.0) for weight in weights]
    accumulator = gg.Accumulator(optimizers, scaler=scaler(), clear=gg.decay(0.5))
    for reached in (weights, weights[:1]):
        with accumulator.update() as update:
            update.backward(sum(8 * weight for weight in reached), count=1)
    assert [weight.item() for weight in weights] == [-20.0, -12.0]


def test_a_window_that_reaches_nothing_does_not_step_on_what_is_carried_over() -> None:
    weight, other = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    for options in ({}, {"scaler": scaler()}):
        accumulator = gg.Accumulator(SGD([weight], lr=1.0), clear=gg.decay(0.5), **options)
        with accumulator.update() as update:
            update.backward(8 * weight, count=1)
        before = weight.item()
        with raises(GraphError, "not reached"), accumulator.update() as update:
            update.backward(8 * other, count=1)
        assert weight.item() == before
        weight.grad = None
