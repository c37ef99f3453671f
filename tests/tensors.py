"""Tensors on the device and in the dtype of this run of the suite.

Both come from the environment: ``GRADGATE_TEST_DEVICE`` (default ``cpu``) and ``GRADGATE_TEST_DTYPE``
(default ``float64``, in which a wrong division cannot hide behind rounding).
"""

import os
from functools import partial
from typing import TypeVar

import torch
from torch import nn

DEVICE = torch.device(os.environ.get("GRADGATE_TEST_DEVICE", "cpu"))
DTYPE: torch.dtype = getattr(torch, os.environ.get("GRADGATE_TEST_DTYPE", "float64"))

# By how much two orders of summing the same numbers may differ, relative to the largest of them: the unit
# roundoff (1e-16, 6e-8) times the length of the sums in this suite (some hundreds at most), with room.
RTOL: float = {torch.float64: 1e-12, torch.float32: 1e-5}[DTYPE]

tensor = partial(torch.tensor, device=DEVICE, dtype=DTYPE)
zeros = partial(torch.zeros, device=DEVICE, dtype=DTYPE)
ones = partial(torch.ones, device=DEVICE, dtype=DTYPE)
arange = partial(torch.arange, device=DEVICE, dtype=DTYPE)
rand = partial(torch.rand, device=DEVICE, dtype=DTYPE)
randn = partial(torch.randn, device=DEVICE, dtype=DTYPE)
labels = partial(torch.tensor, device=DEVICE, dtype=torch.int64)

Model = TypeVar("Model", bound=nn.Module)


def on_device(model: Model) -> Model:
    """Move a module to the device and dtype of this run."""
    return model.to(device=DEVICE, dtype=DTYPE)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor: they tell -0.0 from 0.0, and one NaN from another. A copy."""
    plain = x.detach().resolve_conj().resolve_neg().reshape(-1)
    return plain.clone(memory_format=torch.contiguous_format).view(torch.uint8)
