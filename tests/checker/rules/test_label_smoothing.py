"""A cross entropy with label smoothing is one loss: its items are those of the loss without smoothing."""

import pytest

from tests.checker.rules._watched import findings_of

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 7))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = nn.CrossEntropyLoss(OPTIONS)
for _ in range(4):
    optimizer.zero_grad()
    window = [(torch.randint(7, (48,)), torch.randint(7, (48,))) for _ in range(4)]
    for place, (x, y) in enumerate(window):
        y[8 + SHORTER * place :] = -100
    items = sum((y != -100).sum() for _, y in window)
    for x, y in window:
        loss = criterion(model(x), y)
        (WEIGHED).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("smoothing", ["", "label_smoothing=0.1"])
@pytest.mark.parametrize(
    ("options", "shorter", "weighed", "expected"),
    [
        ("", 0, "loss / 4", []),
        ("", 10, "loss * (y != -100).sum() / items", []),
        ("reduction='sum'", 10, "loss / items", []),
        ("", 0, "loss", ["GG102 error"]),
        ("", 0, "loss / 8", ["GG102 error"]),
        ("", 10, "loss / 4", ["GG103 error"]),
        ("weight=torch.linspace(0.5, 2, 7)", 10, "loss / 4", ["GG103 warning"]),
    ],
)
def test_it_is_judged_as_without_smoothing(
    options: str, shorter: int, weighed: str, expected: list[str], smoothing: str
) -> None:
    text = SCRIPT.replace("OPTIONS", ", ".join(filter(None, (options, smoothing))))
    found = findings_of(text.replace("SHORTER", str(shorter)).replace("WEIGHED", weighed))
    assert [f"{finding.code} {finding.severity}" for finding in found] == expected
