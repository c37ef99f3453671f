"""Times when what runs is no training."""

import torch

from gradgate.events import is_trial

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def tracing() -> bool:
    """Say whether torch compiles, runs on fake tensors, which have no values, or gradgate itself only tries."""
    return torch.compiler.is_compiling() or torch._C._get_dispatch_mode(_FAKE) is not None or is_trial()
