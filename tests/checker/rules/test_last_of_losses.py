"""A loop that replaces its loss is reported if the others are forgotten, and not if they may be for display."""

import pytest

from tests.checker.rules._watched import findings_of

SCRIPT = """
import torch
import torch.nn.functional as F

net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(6):
    total, losses = 0.0, []
    for chunk in torch.randn(3, 8, 4):
        loss = F.mse_loss(net(chunk), chunk.sum(1, keepdim=True))
        {kept}
    optimizer.zero_grad()
    {lost}.backward()
    optimizer.step()
    print({shown})
"""


@pytest.mark.parametrize(
    ("kept", "lost", "shown", "found"),
    [
        ("total += loss.item()", "loss", "total", True),
        ("losses.append(loss.item())", "loss", "sum(losses) / len(losses)", True),
        ("size = len(chunk)", "loss", "loss.item()", True),
        ("losses.append(loss.item())", "loss", "losses", False),
        ("total += loss", "total", "loss.item()", False),
        ("total += loss.item()\n        if total > 9: break", "loss", "total", False),
        ("losses.append(loss)", "sum(losses)", "loss.item()", False),
    ],
    ids=[
        "added up as numbers",
        "averaged as numbers",
        "not read",
        "shown one by one",
        "all back-propagated",
        "chosen",
        "summed",
    ],
)
def test_a_loss_that_each_pass_replaces(kept: str, lost: str, shown: str, found: bool) -> None:
    findings = findings_of(SCRIPT.format(kept=kept, lost=lost, shown=shown))
    assert [(each.code, each.line) for each in findings] == ([("GG407", 10)] if found else [])
