"""A term that another file adds to the loss is not left out."""

import sys
from pathlib import Path

import pytest

from tests.checker.rules._watched import findings_in

LOSSES = """
import torch.nn.functional as F


def losses(model, x, weight):
    out = model(x)
    distance, size = F.mse_loss(out, x), out.square().mean()
    return distance + weight * size, distance, size
"""
TRAIN = """
import torch
from losses_of_a_test import losses

SPARSITY_WEIGHT = 0.1
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    total, distance, sparsity_loss = losses(model, torch.randn(8, 4), SPARSITY_WEIGHT)
    loss = TERM
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(distance.item(), sparsity_loss.item())
"""


@pytest.mark.parametrize(("term", "left_out"), [("total", False), ("distance", True)])
def test_a_term_that_another_file_adds_is_not_left_out(
    term: str, left_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "losses_of_a_test.py").write_text(LOSSES, "utf-8")
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("TERM", term), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "losses_of_a_test", raising=False)
    assert ("GG407" in {finding.code for finding in findings_in(script)}) is left_out
