"""The window: micro-batches in, one exact update out."""

from gradgate.accumulation._accumulator import Accumulator
from gradgate.accumulation._learning_rate import scale_lr, warmup
from gradgate.accumulation._log_to import Logging, log_to
from gradgate.accumulation._noise_scale import NoiseScale
from gradgate.accumulation._settings import Decay, decay
from gradgate.accumulation._update import Update
from gradgate.accumulation._windows import Window, Windows, windows

__all__ = [
    "Accumulator",
    "Decay",
    "Logging",
    "NoiseScale",
    "Update",
    "Window",
    "Windows",
    "decay",
    "log_to",
    "scale_lr",
    "warmup",
    "windows",
]
