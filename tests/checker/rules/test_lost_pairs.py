"""A loss that compares the items of a micro-batch, accumulated over micro-batches, with and without gradgate."""

import pytest

from tests.checker.rules._watched import findings_of

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

import gradgate as gg

torch.manual_seed(0)
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulator = gg.Accumulator(optimizer, model=model)


def info_nce(z):
    return F.cross_entropy(F.normalize(z, dim=1) @ F.normalize(z.flip(1), dim=1).T, torch.arange(len(z)))


def siglip(z):
    return -F.logsigmoid((z @ z.flip(1).T) * (2 * torch.eye(len(z)) - 1)).sum(1).mean()


for window in torch.randn(6, 8, 6):
"""
BY_HAND = (
    HEAD
    + """
    for x in window.split(4):
        (LOSS / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
BY_THE_ACCUMULATOR = (
    HEAD
    + """
    with accumulator.update() as update:
        for x in update.micro_batches(window.split(4)):
            update.backward(LOSS, count=len(x))
"""
)
WHOLE = (
    HEAD
    + """
    x = window
    LOSS.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


@pytest.mark.filterwarnings("ignore::gradgate.errors.CoupledLossWarning")
@pytest.mark.parametrize("loop", [BY_HAND, BY_THE_ACCUMULATOR], ids=["by hand", "by the accumulator"])
@pytest.mark.parametrize(("loss", "severity"), [("info_nce", "warning"), ("siglip", "info")])
def test_pairs_between_micro_batches_are_missed(loop: str, loss: str, severity: str) -> None:
    text = loop.replace("LOSS", f"{loss}(model(x))")
    (found,) = findings_of(text)
    assert (found.code, found.severity) == ("GG103", severity)
    line = text.splitlines()[found.line - 1]
    assert ("update.backward(" if loop is BY_THE_ACCUMULATOR else "    return ") in line


@pytest.mark.parametrize("loss", ["info_nce", "siglip"])
def test_a_batch_that_is_not_split_misses_none(loss: str) -> None:
    assert findings_of(WHOLE.replace("LOSS", f"{loss}(model(x))")) == []


def test_a_classifier_of_as_many_classes_as_samples_compares_no_items() -> None:
    assert findings_of(BY_HAND.replace("LOSS", "F.cross_entropy(model(x), torch.arange(4))")) == []
