"""Modules that keep statistics, or write buffers in other ways; and all of a module that could change."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from tests.tensors import bits


class Counting(nn.Module):
    """Counts samples in place, in evaluation mode too, and keeps the last by putting a new tensor there."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4))
        self.register_buffer("first", None)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        self.last = x[0].detach()
        if self.first is None:
            self.first = self.last
        return x


class Counter(nn.Module):
    """Counts its calls, and needs the count in its backward pass. Something may happen after it has counted."""

    def __init__(self, during: Callable[[], Any] = tuple) -> None:
        super().__init__()
        self.during = during
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = x * self.calls
        self.during()
        return x.sin().cos()


class Averaging(nn.Module):
    """Divides by a running scale, which is written past autograd, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.scale.data.lerp_(x.detach().abs().mean(0), 0.1)
        self.scale.clamp_(min=0.1)
        return x / self.scale


class Overseeing(nn.Module):
    """Writes the buffers of a module below."""

    def __init__(self) -> None:
        super().__init__()
        self.below = Counting()

    def forward(self, x: Tensor) -> Tensor:
        x = self.below(x)
        self.below.seen.mul_(2)
        return x


def hooked() -> nn.Module:
    """A module of torch's own, in which hooks count."""
    linear = nn.Linear(4, 4)
    linear.register_buffer("calls", torch.zeros((), dtype=torch.int64))
    linear.register_forward_pre_hook(lambda module, *_: module.calls.add_(1) and None)
    linear.register_forward_hook(lambda module, *_: module.calls.add_(2) and None)
    return linear


def on_channels(norm: nn.Module, *shape: int) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, shape), norm, nn.Flatten(1))


# Each maps [8, 4] to [8, 4].
MODULES: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm1d": lambda: nn.BatchNorm1d(4),
    "BatchNorm1d, cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
    "BatchNorm1d without statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "BatchNorm1d without weights": lambda: nn.BatchNorm1d(4, affine=False),
    "BatchNorm2d": lambda: on_channels(nn.BatchNorm2d(2), 2, 1, 2),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm(4),
    "InstanceNorm1d": lambda: on_channels(nn.InstanceNorm1d(2, affine=True, track_running_stats=True), 2, 2),
    "LayerNorm": lambda: nn.LayerNorm(4),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "RMSNorm": lambda: nn.RMSNorm(4),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
    "spectral norm, old": lambda: spectral_norm(nn.Linear(4, 4)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "weight norm, old": lambda: weight_norm(nn.Linear(4, 4)),  # warns that it is deprecated
    "Dropout": lambda: nn.Dropout(),
    "counting": Counting,
    "counter": Counter,
    "averaging": Averaging,
    "overseeing": Overseeing,
    "hooked": hooked,
}


def values(module: nn.Module) -> dict[str, list[int]]:
    """The bits of parameters and buffers."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: bits(one).tolist() for name, one in named}


def condition(module: nn.Module) -> dict[str, list[Any]]:
    """All that is given back when a module is frozen no longer."""
    modules, parameters = list(module.modules()), list(module.parameters())
    return {
        "modes": [one.training for one in modules],
        "hooks": [(len(one._forward_hooks), len(one._forward_pre_hooks)) for one in modules],
        "attributes": [sorted(vars(one)) for one in modules],
        "buffers": [id(one) for one in module.buffers()],
        "requires_grad": [one.requires_grad for one in parameters],
        "gradients": [
            (id(one.grad), None if one.grad is None else bits(one.grad).tolist()) for one in parameters
        ],
    }
