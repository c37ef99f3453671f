"""Exact control over gradients in PyTorch: what is added up, by what it is divided, when it is cleared.

The names below come in the order of a training step.
"""

from gradgate.accumulation import Accumulator, Update, decay, scale_lr, warmup, windows
from gradgate.tally import Tally

__version__ = "0.1.0"

__all__ = ["scale_lr", "warmup", "Accumulator", "windows", "Update", "Tally", "decay"]  # noqa: RUF022
