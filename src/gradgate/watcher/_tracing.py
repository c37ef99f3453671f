"""Times when what runs is no training."""

import torch

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def tracing() -> bool:
    """Say whether torch compiles, runs on fake tensors, which have no values, or gradgate itself only tries."""
    return torch.compiler.is_compiling() or torch._C._get_dispatch_mode(_FAKE) is not None or _tries()


def _tries() -> bool:
    """Say whether a mode is on that says of itself that what runs in it is a trial: a plan is being measured."""
    places = range(torch._C._len_torch_dispatch_stack())
    return any(getattr(torch._C._get_dispatch_stack_at(place), "is_trial", False) for place in places)
