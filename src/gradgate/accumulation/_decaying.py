"""Keeps the gradients that decay while optimizers step, because a step may write to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor
from torch.optim import Optimizer

from gradgate.accumulation._settings import Decay, UpdateSettings, owned_parameters


@contextmanager
def gradients_kept(settings: UpdateSettings) -> Iterator[None]:
    """Restore the gradients that the optimizers received, if they decay. Takes memory for a copy.

    SGD with ``nesterov=True, foreach=True`` (the default on a GPU) adds its momentum to ``.grad``, for example. The
    copy is made after all hooks, which may still change the gradients that the optimizer receives.
    """
    if not isinstance(settings.clear, Decay):
        yield
        return
    received: list[tuple[Tensor, Tensor]] = []

    def keep(optimizer: Optimizer, *_: object) -> None:
        parameters = owned_parameters([optimizer])
        received.extend((each, each.grad.clone()) for each in parameters if each.grad is not None)

    with ExitStack() as hooks:
        for optimizer in settings.optimizers:
            if hasattr(optimizer, "register_step_pre_hook"):
                hooks.callback(optimizer.register_step_pre_hook(keep).remove)
            else:  # a wrapper around an optimizer
                keep(optimizer)
        yield
    for parameter, gradient in received:
        parameter.grad = gradient
