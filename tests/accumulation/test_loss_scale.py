"""A GradScaler's full path: scale, unscale, clip, step or skip, update; and one scale per window."""

import pytest
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

import gradgate as gg
from gradgate.errors import UpdateError
from tests.accumulation.one_weight import StopError, add, one_weight, stopped_by, update_by
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
