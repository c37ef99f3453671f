"""The window: micro-batches in, one exact update out."""

from gradgate.accumulation._accumulator import Accumulator
from gradgate.accumulation._counts import (
    Count,
    as_number,
    checked_count,
    count_in_graph,
    divided_by,
    divisor_in_graph,
    is_sum,
)
from gradgate.accumulation._gradients import dense_values, multiply
from gradgate.accumulation._learning_rate import scale_lr, warmup
from gradgate.accumulation._log_to import Logging, log_to
from gradgate.accumulation._loss_checks import check_scalar
from gradgate.accumulation._noise_scale import NoiseScale
from gradgate.accumulation._running_sum import RunningSum
from gradgate.accumulation._settings import Decay, decay
from gradgate.accumulation._update import Update
from gradgate.accumulation._windows import Window, Windows, windows

__all__ = [
    "Accumulator",
    "Count",
    "Decay",
    "Logging",
    "NoiseScale",
    "RunningSum",
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
    "log_to",
    "multiply",
    "scale_lr",
    "warmup",
    "windows",
]
