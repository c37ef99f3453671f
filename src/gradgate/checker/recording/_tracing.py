"""Times when what runs is no training."""

import torch

from gradgate.torch_compat import dispatch_modes, fake_tensors_on


def tracing() -> bool:
    """Say whether torch compiles, runs on fake tensors, which have no values, or gradgate itself only tries."""
    return torch.compiler.is_compiling() or fake_tensors_on.use() or _tries()


def _tries() -> bool:
    """Say whether a mode is on that says of itself that what runs in it is a trial: a plan is being measured."""
    return any(getattr(mode, "is_trial", False) for mode in dispatch_modes.use())
