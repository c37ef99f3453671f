"""Options that cannot be used are refused when the accumulator is made."""

import math
from typing import Any

import pytest
import torch
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import gradgate as gg
from gradgate.errors import OptionError
from tests.accumulation.one_weight import one_weight, update_by
from tests.messages import raises


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"clip_norm": 0}, "clip_norm is 0, it must be positive and finite"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
        ({"clip_norm": math.nan}, "clip_norm is nan"),
        ({"clip_value": math.inf}, "clip_value is inf"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "both clip_norm=1.0 and clip_value=1.0 are given"),
        (
            {"accumulate_dtype": torch.int32},
            "accumulate_dtype is torch.int32; sums of gradients need a floating",
        ),
        ({"nonfinite": "ignore"}, "nonfinite is 'ignore'; it must be 'raise', 'skip' or 'step'"),
        ({"nonfinite": "step", "scaler": GradScaler("cpu")}, "nonfinite='step' together with a GradScaler"),
        ({"clear": "None"}, "clear is 'None'"),
        ({"batch_norm": "whole"}, "batch_norm is 'whole'"),
        ({"scheduler": 3}, "int is not a learning-rate scheduler"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
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
