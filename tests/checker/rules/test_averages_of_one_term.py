"""A term that is added several times and divided by as much counts once, in a window of micro-batches too."""

import pytest

from tests.checker.rules._watched import findings_of

SCRIPT = """
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    for _ in range(WINDOW):
        out = model(torch.randn(8, 4))
        loss, aux = out.square().mean(), out.abs().mean()
        total = TOTAL
        total.backward()
    optimizer.step()
"""
RIGHT = [
    ("(loss + loss) / 2", 1),
    ("0.5 * loss + 0.5 * loss", 1),
    ("0.3 * loss + 0.7 * loss", 1),
    ("torch.stack([loss, loss, loss]).mean()", 1),
    ("loss + 0.1 * (aux + aux) / 2", 1),
    ("(loss + loss) / 2 / WINDOW", 2),
    ("(loss + loss) / 2 / WINDOW", 4),
    ("(loss + loss) / (2 * WINDOW)", 4),
]
WRONG = [
    ("loss + loss", 1),
    ("loss + 0.5 * loss", 1),
    ("loss + 0.1 * aux + 0.1 * aux", 1),
    ("(loss + loss) / WINDOW", 2),
    ("(loss + loss) / WINDOW", 4),
]


@pytest.mark.parametrize(
    ("total", "window", "codes"), [*((*one, []) for one in RIGHT), *((*one, ["GG105"]) for one in WRONG)]
)
def test_only_a_term_that_weighs_more_than_once_is_reported(
    total: str, window: int, codes: list[str]
) -> None:
    found = findings_of(SCRIPT.replace("TOTAL", total).replace("WINDOW", str(window)))
    assert [finding.code for finding in found] == codes
