"""Which optimizers can be stepped once per window, and how messages name what they own."""

from typing import Any

import pytest
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR

import gradgate as gg
from gradgate.errors import OptionError
from tests.messages import raises
from tests.tensors import zeros


class Sharpness(Optimizer):
    """Needs a closure, as sharpness-aware minimisation does."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()


@pytest.mark.parametrize("scheduled", [False, True])
def test_so_is_anybody_elses_that_needs_a_closure(scheduled: bool) -> None:
    optimizer = Sharpness([nn.Parameter(zeros(2))])
    if scheduled:  # which wraps the optimizer's step
        optimizer.param_groups[0]["lr"] = 0.1
        StepLR(optimizer, 1)
    with raises(OptionError, "closure", "Sharpness"):
        gg.Accumulator(optimizer)


def test_a_scheduler_does_not_make_an_ordinary_optimizer_look_like_one() -> None:
    weight = nn.Parameter(zeros(2))
    optimizer = Adam([weight])
    accumulator = gg.Accumulator(optimizer, scheduler=StepLR(optimizer, 1))
    with accumulator.update() as update:
        update.backward(weight.sum(), count=1)
    assert update.stepped


def test_a_parameter_is_named_as_the_optimizer_names_it_or_by_its_place() -> None:
    a, b, c = (nn.Parameter(zeros(2, 3)) for _ in range(3))
    optimizer = SGD(
        [{"params": [("encoder.weight", a)]}, {"params": [("head.weight", b)], "lr": 1.0}], lr=0.1
    )
    settings = gg.Accumulator(optimizer)._settings
    assert settings.names([b]) == "'head.weight'"
    assert (
        gg.Accumulator([SGD([c]), SGD([a, b])])._settings.names([b])
        == "parameter 1 of group 0 (SGD, shape [2, 3])"
    )
    assert settings.names([c]) == "a tensor of shape [2, 3]"
    assert settings.names([a, b, a, b, a]) == ("'encoder.weight', 'head.weight', 'encoder.weight' and 2 more")
