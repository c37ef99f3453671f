"""A deep copy of a model, its optimizer and its accumulator trains as the original does, and apart from it."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import GradientError, UpdateError

PARTS = torch.linspace(-1, 1, 30).reshape(6, 5).split((3, 1, 2))


def run(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, gg.Accumulator]:
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, gg.Accumulator(optimizer, model=model, **options)


def update(model: nn.Module, accumulator: gg.Accumulator) -> None:
    accumulator.step_window(lambda part: model(part).square().mean(), list(PARTS))


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("clear", ["none", "zero", gg.decay(0.5)], ids=str)
@pytest.mark.parametrize("updates", [0, 1, 3])
def test_a_copy_trains_as_the_original(clear: Any, updates: int) -> None:
    model, optimizer, accumulator = run(clear=clear)
    for _ in range(updates):
        update(model, accumulator)
    its_model, its_optimizer, its = copy.deepcopy((model, optimizer, accumulator))
    before = values(its_model)
    for _ in range(2):
        update(model, accumulator)
    assert all(map(torch.equal, values(its_model), before))
    for _ in range(2):
        update(its_model, its)
    assert all(map(torch.equal, values(its_model), values(model)))
    assert its_optimizer.state[its_model.weight]["step"] == updates + 2


def test_a_gradient_of_other_code_is_not_copied() -> None:
    model, optimizer, accumulator = run(clear=gg.decay(0.5))
    update(model, accumulator)
    model.weight.grad.add_(1)
    its_model, _, its = copy.deepcopy((model, optimizer, accumulator))
    assert its_model.weight.grad is None
    update(its_model, its)
    with pytest.raises(GradientError):
        update(model, accumulator)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [pickled, saved])
@pytest.mark.parametrize("clear", ["none", "zero", gg.decay(0.5)], ids=str)
def test_a_saved_accumulator_goes_on_as_the_original(clear: Any, copied: Callable[[Any], Any]) -> None:
    model, optimizer, accumulator = run(clear=clear, noise_scale=gg.NoiseScale())
    update(model, accumulator)
    its_model, its_optimizer, its = copied((model, optimizer, accumulator))
    for _ in range(2):
        update(model, accumulator)
        update(its_model, its)
    assert all(map(torch.equal, values(its_model), values(model)))
    with its.update() as window:
        window.backward(its_model(PARTS[0]).square().mean(), count=3)
        with pytest.raises(UpdateError, match=r"optimizer\.step\(\) was called inside"):
            its_optimizer.step()


def test_a_saved_accumulator_continues_the_window_that_it_had_loaded() -> None:
    model, _, accumulator = run()
    window = accumulator.update().__enter__()
    for part in window.micro_batches(PARTS[:1]):
        window.backward(model(part).square().mean(), count=len(part))
    state = accumulator.state_dict()
    accumulator.discard()
    accumulator.load_state_dict(state)
    assert pickled(accumulator).state_dict()["window"]["micro_batches"] == 1
