"""Gradient accumulation: turns a window of micro-batches into one exact update."""

from gradgate.accumulation._accumulator import Accumulator
from gradgate.accumulation._counts import (
    Caller,
    Count,
    checked_count,
    count_in_graph,
    divided_by,
    divisor_in_graph,
    is_sum,
)
from gradgate.accumulation._gradients import dense_values, multiply, separate, total_norm
from gradgate.accumulation._loss_checks import LossChecks, check_scalar
from gradgate.accumulation._settings import Decay, decay, owned_parameters
from gradgate.accumulation._sums import LossSum, Stamps, as_number
from gradgate.accumulation._window import Update
from gradgate.accumulation._windows import Window, Windows, windows

__all__ = [
    "Accumulator",
    "Caller",
    "Count",
    "Decay",
    "LossChecks",
    "LossSum",
    "Stamps",
    "Update",
    "Window",
    "Windows",
    "as_number",
    "check_scalar",
    "checked_count",
    "count_in_graph",
    "decay",
    "dense_values",
    "divided_by",
    "divisor_in_graph",
    "is_sum",
    "multiply",
    "owned_parameters",
    "separate",
    "total_norm",
    "windows",
]
