"""Windows that grow by a plan are right for every loss in them, whatever else is wrong with one of these losses."""

from tests.checker.rules._watched import findings_of

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
        (F.cross_entropy(head(z), y) / window).backward(retain_graph=True)
        opt_probe.zero_grad()
        F.cross_entropy(probe(z), y % 2).backward()
        opt_probe.step()
    opt.step()
"""


def test_a_second_loss_does_not_make_them_wrong() -> None:
    assert "GG101" not in {finding.code for finding in findings_of(SCRIPT)}
