"""Gradient accumulation: turns a window of micro-batches into one exact update."""

from gradgate.accumulation._accumulator import Accumulator
from gradgate.accumulation._counts import (
    Count,
    Counted,
    checked_count,
    count_in_graph,
    counted_terms,
    divided_by,
    divisor_in_graph,
    is_sum,
    refuse_divided,
)
from gradgate.accumulation._gradients import dense_values, multiply, separate, total_norm
from gradgate.accumulation._loss_checks import (
    are_proportional,
    check_scalar,
    warn_divided_twice,
    warn_not_proportional,
)
from gradgate.accumulation._settings import Decay, decay, owned_parameters
from gradgate.accumulation._sums import LossSum, as_number
from gradgate.accumulation._window import Update
from gradgate.accumulation._windows import Window, Windows, windows

__all__ = [
    "Accumulator",
    "Count",
    "Counted",
    "Decay",
    "LossSum",
    "Update",
    "Window",
    "Windows",
    "are_proportional",
    "as_number",
    "check_scalar",
    "checked_count",
    "count_in_graph",
    "counted_terms",
    "decay",
    "dense_values",
    "divided_by",
    "divisor_in_graph",
    "is_sum",
    "multiply",
    "owned_parameters",
    "refuse_divided",
    "separate",
    "total_norm",
    "warn_divided_twice",
    "warn_not_proportional",
    "windows",
]
