"""Estimates the useful batch size, and scales the learning rate with the batch size."""

from gradgate.accumulation.batch_size._learning_rate import scale_lr, warmup
from gradgate.accumulation.batch_size._noise_scale import (
    NoiseScale,
    SmallBatch,
    claim_noise_scale,
    measure_first,
    pooled,
)

__all__ = ["NoiseScale", "SmallBatch", "claim_noise_scale", "measure_first", "pooled", "scale_lr", "warmup"]
