"""A sum is divided by the items of several windows, as in a trainer that counts the tokens of a whole batch."""

import pytest

from tests.checker.rules._watched import findings_of

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 7))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def batch():
    for _ in range(4):
        x, y = torch.randint(7, (8, 12)), torch.randint(7, (8, 12))
        yield x, y.masked_fill(torch.rand(8, 12) < 0.3, -100)


for _ in range(4):
    micro_batches = list(batch())
    for window in WINDOWS:
        optimizer.zero_grad()
        for x, y in window:
            logits, valid = model(x).transpose(1, 2), y != -100
            total = sum((y != -100).sum() for _, y in COUNTED)
            loss = LOSS
            loss.backward()
        optimizer.step()
"""
LOSSES = [
    'F.cross_entropy(logits, y, reduction="sum") / total',
    'F.cross_entropy(logits, y, reduction="sum", label_smoothing=0.1) / total',
    'F.cross_entropy(logits, y, reduction="none").sum() / total',
    '(F.cross_entropy(logits, y.clamp(min=0), reduction="none") * valid).sum() / total',
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("windows", "counted", "wrong"),
    [
        ("[micro_batches[:2], micro_batches[2:]]", "micro_batches", True),
        ("[[each] for each in micro_batches]", "micro_batches", True),
        ("[micro_batches[:2], micro_batches[2:]]", "window", False),
        ("[micro_batches]", "micro_batches", False),
    ],
)
def test_the_items_of_one_window_are_the_right_divisor(
    loss: str, windows: str, counted: str, wrong: bool
) -> None:
    text = SCRIPT.replace("WINDOWS", windows).replace("COUNTED", counted).replace("LOSS", loss)
    found = findings_of(text)
    assert [finding.code for finding in found] == ["GG102"] * wrong
    assert all(text.splitlines()[finding.line - 1].lstrip().startswith("loss = ") for finding in found)
