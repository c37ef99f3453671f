"""The slow truth: whole batches in one process, plain float64 autograd, one division, one step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.laws.fuzz.losses import Loss
from tests.laws.fuzz.models import BY_MICRO_BATCH, GATES
from tests.laws.fuzz.scenario import Scenario
from tests.laws.fuzz.trainer import CLIP_NORM, CLIP_VALUE, DECAY, Rows, Trainer, joined, logits_of


class Whole(Trainer):
    """Trains on whole batches; ``.grad`` holds what a loop without gradgate would leave there."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, GATES[scenario.gate][1])
        self.make_optimizers()

    def count(self, micro_batches: Sequence[Rows]) -> list[float]:
        """Return the items of each loss in a window."""
        return [float(loss.items(self.fields_of(joined(micro_batches)))) for loss in self.losses]

    def window(self, micro_batches: Sequence[Rows], *, frozen: bool) -> tuple[float, float]:
        """Make one update; return its loss and the norm of its gradient before the clip."""
        aside = list(self.net.body.parameters()) if frozen else []
        kept = [(p.grad, p.requires_grad) for p in aside]
        for parameter in aside:
            parameter.requires_grad_(False).grad = None
        value = sum(self._add(number, micro_batches) for number in range(len(self.losses)))
        norm = self._step()
        for parameter, (gradient, trained) in zip(aside, kept, strict=True):
            parameter.requires_grad_(trained).grad = gradient
        return value, norm

    def _add(self, number: int, micro_batches: Sequence[Rows]) -> float:
        """Add the gradient of one loss to ``.grad``."""
        loss, items = self.losses[number], self.count(micro_batches)[number]
        if not items:
            return 0.0
        apart = self.scenario.gate in BY_MICRO_BATCH
        value = 0.0
        for rows in micro_batches if apart else [joined(micro_batches)]:
            share = self._items(loss, rows) / items
            if share:
                value += self._add_share(number, rows, share)
        return value

    def _items(self, loss: Loss, rows: Rows) -> float:
        return float(loss.items(self.fields_of(rows)))

    def _add_share(self, number: int, rows: Rows, share: float) -> float:
        loss, fields = self.losses[number], self.fields_of(rows)
        if hasattr(self.net.body, "counts"):
            self.net.body.counts = number == 0  # the loop runs its net once for all losses
        mean = loss.value(logits_of(self.net, fields), fields, self.net)
        if loss.reduction == "sum":
            share /= float(loss.items(fields))
        into_head = self.scenario.into and number == 1
        receiving = [p for p in (self.net.head if into_head else self.net).parameters() if p.requires_grad]
        for parameter, gradient in zip(
            receiving, torch.autograd.grad(mean, receiving, allow_unused=True), strict=True
        ):
            if gradient is not None:
                gradient = share * gradient.to_dense()
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return share * float(mean.detach())

    @torch.no_grad()
    def _step(self) -> float:
        for parameter in self.net.parameters():
            if not any(parameter is owned for owned in self.owned()):
                parameter.grad = None
        gradients: list[Tensor] = [p.grad for p in self.owned() if p.grad is not None]
        norm = float(sum(gradient.abs().square().sum() for gradient in gradients) ** 0.5)
        for gradient in gradients:
            if self.scenario.clip == "norm":
                gradient *= min(1.0, CLIP_NORM / (norm + 1e-6))
            elif self.scenario.clip == "value":
                gradient.clamp_(-CLIP_VALUE, CLIP_VALUE)
        for each in (*self.optimizers, *self.schedulers):
            each.step()
        for parameter in self.owned():
            if parameter.grad is not None:
                factor = {"none": None, "zero": 0.0, "decay": DECAY}[self.scenario.clear]
                parameter.grad = None if factor is None else factor * parameter.grad
        return norm
