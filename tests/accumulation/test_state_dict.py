"""A window stopped between two micro-batches goes on in another process, bit for bit."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import GradientError, StateError
from tests.accumulation import stopped_run
from tests.accumulation.one_weight import StopError, one_weight, stopped_by, update_by
from tests.interpreter import python
from tests.laws.standing import differences, same, standing
from tests.messages import raises
from tests.reference import received
from tests.tensors import tensor

WINDOW = [(1.0, 3), (5.0, 1), (2.0, 4)]


def stopped_after(number: int, accumulator: gg.Accumulator, weight: nn.Parameter) -> dict[str, Any]:
    """Stop a window after some micro-batches; return what was saved."""
    with stopped_by(StopError), accumulator.update() as update:
        for done, (gradient, count) in enumerate(update.micro_batches(WINDOW), 1):
            update.backward(weight * gradient, count=count)
            if done == number:
                saved = accumulator.state_dict()
                raise StopError
    return saved


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three processes: one that stops, one that goes on from there, one that was never stopped."""
    folder = tmp_path_factory.mktemp("runs")
    for mode in ("stop", "whole", "resume"):
        done = python("-W", "error", Path(stopped_run.__file__), mode, folder, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", stopped_run.RUNS)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(name: str, folder: Path) -> None:
    resumed, whole = (
        torch.load(folder / f"{name}.{mode}.pt", weights_only=True) for mode in ("resume", "whole")
    )
    different = [key for key in whole if not same(resumed[key], whole[key])]
    assert different == []
    assert torch.load(folder / f"{name}.pt", weights_only=True)["Accumulator"]["window"]["micro_batches"] == 2


@pytest.mark.slow
def test_a_run_that_forgets_the_window_ends_elsewhere(folder: Path) -> None:
    """So that the test above can fail: all is loaded but the accumulator."""
    run = stopped_run.Run("momentum")
    saved = torch.load(folder / "momentum.pt", weights_only=True)
    run.load({**saved, "Accumulator": run.accumulator.state_dict()})
    run.train(range(stopped_run.STOP_AT[0], stopped_run.WINDOWS))
    assert not same(
        run.states()["Sequential"], torch.load(folder / "momentum.whole.pt", weights_only=True)["Sequential"]
    )


def test_a_micro_batch_whose_backward_has_not_come_is_not_counted() -> None:
    weight, _, accumulator = one_weight()
    with stopped_by(StopError), accumulator.update() as update:
        for number, (gradient, count) in enumerate(update.micro_batches(WINDOW)):
            if number == 1:
                state = accumulator.state_dict()
                raise StopError
            update.backward(weight * gradient, count=count)
    assert state["window"]["micro_batches"] == 1
    accumulator.load_state_dict(state)
    update_by(accumulator, weight, WINDOW)
    assert weight.item() == -2.0


def test_a_loaded_window_can_be_saved_again_before_it_goes_on() -> None:
    weight, optimizer, accumulator = one_weight()
    state = stopped_after(1, accumulator, weight)
    again = gg.Accumulator(optimizer)
    again.load_state_dict(state)
    assert same(again.state_dict(), state)


def test_a_new_scaler_takes_over_the_windows_scale() -> None:
    def scaler() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=2.0**9)

    weight, optimizer, accumulator = one_weight(scaler=scaler())
    for number in (1, 3):  # 3: nothing is left to be done but the step
        state = through_a_file(stopped_after(number, accumulator, weight))
        again = gg.Accumulator(optimizer, scaler=scaler())
        again.load_state_dict(state)
        with received(optimizer) as steps:
            update_by(again, weight, WINDOW)
        assert steps[0][0].item() == 2.0


def test_a_resumed_window_that_is_given_up_leaves_everything_as_before() -> None:
    for options in ({}, {"clear": "zero"}, {"scaler": torch.amp.GradScaler("cpu")}):
        weight, optimizer, accumulator = one_weight(**options)
        update_by(accumulator, weight, WINDOW)
        before = standing(optimizer, scaler=options.get("scaler"))
        accumulator.load_state_dict(stopped_after(2, accumulator, weight))
        with stopped_by(StopError), accumulator.update() as update:
            next(update.micro_batches(WINDOW))
            raise StopError
        assert differences(standing(optimizer, scaler=options.get("scaler")), before) == []
        update_by(accumulator, weight, WINDOW)
        assert weight.item() == -4.0


# -- states that do not fit ---------------------------------------------------------------------------------


def refused(accumulator: gg.Accumulator, state: Any, *cause: str, kind: type = StateError) -> None:
    optimizers = accumulator._settings.optimizers
    before, own = standing(optimizers[0]), copy.deepcopy(accumulator.state_dict())
    with raises(kind, *cause):
        accumulator.load_state_dict(state)
    assert differences(standing(optimizers[0]), before) == []
    assert same(accumulator.state_dict(), own)


def test_decayed_gradients_are_not_put_over_other_ones() -> None:
    weight, optimizer, accumulator = one_weight(clear=gg.decay(0.5))
    update_by(accumulator, weight, WINDOW)
    state = accumulator.state_dict()
    refused(gg.Accumulator(optimizer, clear=gg.decay(0.5)), state, "a users gradient", kind=GradientError)
    accumulator.load_state_dict(state)  # its own may be replaced
    assert weight.grad.item() == 1.0


def test_a_state_holds_nothing_but_tensors_numbers_texts_and_containers() -> None:
    weight, _, accumulator = one_weight(clear=gg.decay(0.5))
    update_by(accumulator, weight, WINDOW)
    plain = (torch.Tensor, int, float, str, type(None))

    def assert_plain(value: Any) -> None:
        if isinstance(value, dict):
            assert all(type(key) is str for key in value)
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                assert_plain(item)
        else:
            assert type(value) in (*plain, bool)

    assert_plain(stopped_after(2, accumulator, weight))


@pytest.mark.parametrize("saved_after", ["the window", "no micro-batch", "one micro-batch"])
def test_zeros_that_were_left_are_left_again(saved_after: str) -> None:
    """Momentum goes on moving a parameter that the resumed run's next window does not reach."""

    def made() -> tuple[list[nn.Parameter], SGD, gg.Accumulator]:
        weights = [nn.Parameter(tensor(0.0)) for _ in range(2)]
        optimizer = SGD(weights, lr=1.0, momentum=0.5)
        return weights, optimizer, gg.Accumulator(optimizer, clear="zero")

    def update(accumulator: gg.Accumulator, reached: list[nn.Parameter]) -> dict[str, Any]:
        with accumulator.update() as update:
            for _ in update.micro_batches(range(2)):
                update.backward(sum(reached), count=1)
        return accumulator.state_dict()

    weights, optimizer, accumulator = made()
    saved = update(accumulator, weights)
    if saved_after != "the window":
        with stopped_by(StopError), accumulator.update() as stopped:
            for _ in stopped.micro_batches(range(2)):
                if saved_after == "one micro-batch":
                    stopped.backward(weights[0], count=1)
                saved = accumulator.state_dict()
                raise StopError
    values, moments = [weight.item() for weight in weights], copy.deepcopy(optimizer.state_dict())
    update(accumulator, weights[:1])
    resumed, optimizer, accumulator = made()
    for weight, value in zip(resumed, values, strict=True):
        weight.data.fill_(value)
    optimizer.load_state_dict(moments)
    accumulator.load_state_dict(through_a_file(saved))
    update(accumulator, resumed[:1])
    assert [weight.item() for weight in resumed] == [weight.item() for weight in weights] == [-2.5, -1.5]


def test_moments_that_are_wider_than_the_parameters_are_loaded_as_they_were() -> None:
    def made() -> tuple[nn.Parameter, SGD, gg.Accumulator]:
        weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
        optimizer = SGD([weight], lr=1.0, momentum=0.9)
        return weight, optimizer, gg.Accumulator(optimizer)

    weight, optimizer, accumulator = made()
    with accumulator.update() as update:
        update.backward(weight.float().sum() * (1 + 1e-5), count=1)
    other, resumed, again = made()
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    again.load_state_dict(accumulator.state_dict())
    assert resumed.state[other]["momentum_buffer"].item() == optimizer.state[weight]["momentum_buffer"].item()
    with pytest.raises(StateError, match="wider than its parameters"):
        made()[2].load_state_dict(accumulator.state_dict())
