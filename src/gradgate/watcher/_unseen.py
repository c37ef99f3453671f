"""Doing something that the user's own modes and tensor classes do not get to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


def as_torch_itself() -> AbstractContextManager[None]:
    """Keep what is done within from the modes and tensor classes of the user's own."""
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    return _without_modes() if modes else _without_classes()


def _without_classes() -> AbstractContextManager[None]:
    within: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return within


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield
