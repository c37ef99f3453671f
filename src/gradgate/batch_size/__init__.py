"""Estimates the useful batch size, and scales the learning rate with the batch size."""

from gradgate.batch_size._learning_rate import scale_lr, warmup
from gradgate.batch_size._noise_scale import (
    NoiseScale,
    SmallBatch,
    add_window,
    claim_noise_scale,
    refuse_sharded,
)

__all__ = [
    "NoiseScale",
    "SmallBatch",
    "add_window",
    "claim_noise_scale",
    "refuse_sharded",
    "scale_lr",
    "warmup",
]
