"""Options that cannot be used are refused when the accumulator is made."""

from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import numpy
import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ExponentialLR,
    SequentialLR,
    StepLR,
)

import gradgate as gg
from gradgate.errors import OptionError
from tests.accumulation.one_weight import one_weight, update_by
from tests.messages import raises


def test_a_clip_may_be_any_number() -> None:
    for limit in (1, 1.0, torch.tensor(1.0), numpy.float32(1)):
        weight, _, accumulator = one_weight(clip_norm=limit)
        update_by(accumulator, weight, [(4.0, 1)])
        assert weight.item() == pytest.approx(-1.0)


class Wrapper:
    """Steps a torch optimizer, as the optimizers of Accelerate and of other libraries do."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()


class Duck:
    """A scheduler that does not show its optimizer, or shows that of another scheduler."""

    def __init__(self, **shown: Any) -> None:
        vars(self).update(shown)

    def step(self) -> None:
        pass


def two_optimizers() -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    return one_weight()[1], one_weight()[1]


@pytest.mark.parametrize(
    "scheduler_of",
    [
        lambda optimizer: StepLR(optimizer, 1),
        lambda optimizer: ChainedScheduler([StepLR(optimizer, 1), ExponentialLR(optimizer, 0.9)]),
        lambda optimizer: SequentialLR(optimizer, [StepLR(optimizer, 1), StepLR(optimizer, 2)], [3]),
        lambda optimizer: Duck(optimizer=Wrapper(optimizer)),
        lambda optimizer: Duck(scheduler=StepLR(optimizer, 1)),
    ],
    ids=["plain", "chained", "sequential", "of a wrapper", "wrapped"],
)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_scheduler_belongs_to_the_optimizer(scheduler_of: Any) -> None:
    optimizer, other = two_optimizers()
    gg.Accumulator(optimizer, scheduler=scheduler_of(optimizer))
    gg.Accumulator([other, optimizer], scheduler=scheduler_of(optimizer))
    gg.Accumulator(Wrapper(optimizer), scheduler=scheduler_of(optimizer))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="sets the learning rates of another optimizer"):
        gg.Accumulator(other, scheduler=scheduler_of(optimizer))
    with pytest.raises(OptionError, match="sets the learning rates of another optimizer"):
        gg.Accumulator(other, scheduler=[StepLR(other, 1), scheduler_of(optimizer)])


def test_a_scheduler_that_shows_no_optimizer_is_taken() -> None:
    for scheduler in (Duck(), Duck(optimizer=None), Duck(optimizer=[3]), Mock()):
        assert one_weight(scheduler=scheduler)[2]._settings.schedulers == (scheduler,)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    "models_of",
    [
        lambda model: model,
        lambda model: [model],
        lambda model: [nn.Linear(3, 3), model],
        lambda model: torch.nn.parallel.DataParallel(model),
        lambda model: nn.Sequential(model, nn.Linear(3, 3)),
        lambda model: model[0],
        lambda model: nn.Identity(),
        lambda model: [],
        lambda model: None,
    ],
    ids=["plain", "list", "with a teacher", "wrapped", "larger", "a part", "no parameters", "none", "None"],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_model_belongs_to_the_optimizer(models_of: Any, lazy: bool) -> None:
    model = nn.Sequential(nn.LazyLinear(2) if lazy else nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accumulator = gg.Accumulator(optimizer, model=models_of(model))
    accumulator.model = nn.Linear(3, 3)  # such as a model whose parameters the optimizer gets next
    models = models_of(model)
    assert gg.Accumulator([one_weight()[1], optimizer], model=models).model is models


def test_a_scaler_that_is_switched_off_is_none() -> None:
    weight, _, accumulator = one_weight(scaler=GradScaler("cpu", enabled=False), nonfinite="step")
    assert update_by(accumulator, weight, [(1.0, 1)]).stepped


def test_nonfinite_means_raise_without_a_scaler_and_skip_with_one() -> None:
    assert one_weight()[2]._settings.nonfinite == "raise"
    assert one_weight(scaler=GradScaler("cpu"))[2]._settings.nonfinite == "skip"
    assert one_weight(scaler=GradScaler("cpu"), nonfinite="raise")[2]._settings.nonfinite == "raise"


class Sharpness(Optimizer):
    """Needs a closure, as sharpness-aware minimisation does."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()


@pytest.mark.parametrize("scheduled", [False, True])  # which wraps the optimizer's step
def test_an_optimizer_that_needs_a_closure_is_refused_and_others_are_not(scheduled: bool) -> None:
    for kind in (Sharpness, Adam):
        optimizer = kind([nn.Parameter(torch.zeros(2))])
        if scheduled:
            StepLR(optimizer, 1)
        with raises(OptionError, "closure", "Sharpness") if kind is Sharpness else nullcontext():
            gg.Accumulator(optimizer)
