"""Options that cannot be used are refused when the accumulator is made."""

import math
from typing import Any

import pytest
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import gradgate as gg
from gradgate.errors import OptionError
from tests.accumulation.one_weight import one_weight, update_by
from tests.messages import raises


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"clip_norm": 0}, ("a clip at 0", "clip_norm is 0")),
        ({"clip_norm": -1.0}, ("a clip at 0", "clip_norm is -1.0")),
        ({"clip_norm": math.nan}, ("a clip at 0", "clip_norm is nan")),
        ({"clip_value": math.inf}, ("a clip at 0", "clip_value is inf")),
        ({"clip_norm": 1.0, "clip_value": 1.0}, ("two clips", "clip_norm=1.0", "clip_value=1.0")),
        ({"nonfinite": "ignore"}, ("an unknown nonfinite", "'ignore'")),
        ({"nonfinite": "step", "scaler": GradScaler("cpu")}, ("steps on overflows",)),
        ({"clear": "None"}, ("an unknown clear", "'None'")),
        ({"scheduler": 3}, ("a word as a scheduler", "int")),
    ],
    ids=", ".join,
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], cause: tuple[str, ...]) -> None:
    with raises(OptionError, *cause):
        one_weight(**options)


def test_a_scheduler_that_steps_on_a_metric_is_refused() -> None:
    _, optimizer, _ = one_weight()
    for scheduler in (ReduceLROnPlateau(optimizer), [StepLR(optimizer, 1), ReduceLROnPlateau(optimizer)]):
        with raises(OptionError, "plateau"):
            gg.Accumulator(optimizer, scheduler=scheduler)


def test_a_scaler_that_is_switched_off_is_none() -> None:
    weight, _, accumulator = one_weight(scaler=GradScaler("cpu", enabled=False), nonfinite="step")
    assert update_by(accumulator, weight, [(1.0, 1)]).stepped


def test_nonfinite_means_raise_without_a_scaler_and_skip_with_one() -> None:
    assert one_weight()[2]._settings.nonfinite == "raise"
    assert one_weight(scaler=GradScaler("cpu"))[2]._settings.nonfinite == "skip"
    assert one_weight(scaler=GradScaler("cpu"), nonfinite="raise")[2]._settings.nonfinite == "raise"
