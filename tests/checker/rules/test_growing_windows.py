"""Windows that grow by a plan are right for every loss in them, whatever else is wrong with one of these losses."""

import runpy
from pathlib import Path

import pytest

from gradgate.checker.recording import Watcher
from gradgate.checker.rules import check

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

body = nn.Sequential(nn.Linear(12, 24), nn.ReLU())
head, probe = nn.Linear(24, 4), nn.Linear(24, 2)
opt = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
opt_probe = torch.optim.SGD(probe.parameters(), lr=0.1)
for window in (1, 2, 4, 7, 7, 7, 7, 7):
    opt.zero_grad()
    for _ in range(window):
        x, y = torch.randn(16, 12), torch.randint(4, (16,))
        z = body(x)
        (F.cross_entropy(head(z), y) / WEIGHT).backward(retain_graph=True)
        opt_probe.zero_grad()
        F.cross_entropy(probe(z), y % 2).backward()
        opt_probe.step()
    opt.step()
"""


@pytest.mark.parametrize(("weight", "accused"), [("window", False), ("7", True)])
def test_a_second_loss_does_not_make_them_wrong(weight: str, accused: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("WEIGHT", weight), "utf-8")
    watcher = Watcher(str(script), strict=True)
    watcher.start()
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        watcher.stop()
    assert ("GG101" in {finding.code for finding in check(watcher.log(), strict=True)}) is accused
