"""What running out of memory looks like."""

from __future__ import annotations

import torch

_PHRASES = (
    "DefaultCPUAllocator: ",  # RuntimeError of the CPU allocator
    "MPS backend out of memory",  # RuntimeError on Apple's GPUs
    "CUDA error: out of memory",  # AcceleratorError outside the caching allocator
    "CUBLAS_STATUS_ALLOC_FAILED",  # RuntimeError of cuBLAS, for its workspace
)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception means that memory ran out, by its type or by what torch writes in others."""
    return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in _PHRASES)
