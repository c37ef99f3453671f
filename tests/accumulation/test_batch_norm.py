"""Batch norms in a window are named once."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import BatchNormWarning
from tests.silence import no_warning
from tests.tensors import DEVICE


def net(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3, **options), nn.Linear(3, 2)).to(DEVICE, torch.float64)


def batch(samples: int = 12, *shape: int) -> Tensor:
    torch.manual_seed(1)
    return (torch.randn(samples, 3, *shape, dtype=torch.float64) * 2 + 5).to(DEVICE)


def run(model: nn.Module, x: Tensor, cut: list[int], **options: Any) -> gg.Accumulator:
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model, **options)
    with accumulator.update() as update:
        for part in update.micro_batches(x.split(cut)):
            update.backward(model(part).pow(2).mean(), count=len(part))
    return accumulator


# -- said once, by name ------------------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.stem(x)


def test_it_is_said_once_by_the_modules_name() -> None:
    model = nn.ModuleDict({"encoder": Encoder(), "head": nn.Linear(3, 1)})
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model)

    def train() -> None:
        with accumulator.update() as update:
            for x in update.micro_batches(torch.randn(3, 4, 3).unbind()):
                loss = model["head"](model["encoder"](x)).mean()
                update.backward(loss)

    with pytest.warns(BatchNormWarning) as said:
        train()
    train()  # as an error it would be heard
    assert len(said) == 1
    assert said[0].filename == __file__
    assert str(said[0].message).startswith(
        "BatchNorm1d 'encoder.stem.1': in training mode, a batch norm normalizes each micro-batch by its own mean "
        "and variance, so no split gives the gradient of the whole batch."
    )


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)), "BatchNorm2d '1'"),
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)), "BatchNorm2d '1'"),
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, affine=False)), "BatchNorm2d '1'"),
        (nn.BatchNorm2d(3), "BatchNorm2d"),
    ],
    ids=["ordinary", "without running statistics", "without weights", "alone"],
)
def test_every_kind_is_seen(model: nn.Module, kind: str) -> None:
    gc.collect()  # batch norms of other tests are not to be named
    with pytest.warns(BatchNormWarning, match=f"^{kind}"):
        run(model, batch(6, 2, 2).float().cpu(), [3, 3])


def test_it_is_not_said_where_it_does_not_matter() -> None:
    """In eval mode, in a window of one, with other norms, with a batch norm outside the model."""
    with no_warning():
        run(net().eval(), batch(), [4, 8])
        run(net(), batch(), [12])
        run(nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3)).to(DEVICE, torch.float64), batch(), [4, 8])
        other = net()
        other(batch())
        run(nn.Linear(3, 1).to(DEVICE, torch.float64), batch(), [4, 8])
    with pytest.warns(BatchNormWarning):  # so that the silence above can be broken
        run(net(), batch(), [4, 8])
