"""A closure that never clears is reported once, also if it calls backward for each of several micro-batches."""

import pytest

from tests.checker.rules._watched import findings_of

SCRIPT = """
import torch

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
x = torch.randn(32, 4)
def closure():
    {clear}
    total = 0.0
    for chunk in x.split({size}):
        loss = (net(chunk) - chunk.prod(1, keepdim=True)).square().sum()
        loss.backward()
        total = total + loss.detach()
    return total
for _ in range(5):
    {before}
    optimizer.step(closure)
"""


@pytest.mark.parametrize("size", [8, 32], ids=["micro-batches", "one batch"])
@pytest.mark.parametrize(
    ("clear", "before", "found"),
    [
        ("pass", "pass", True),
        ("optimizer.zero_grad()", "pass", False),
        ("pass", "optimizer.zero_grad()", False),
    ],
    ids=["nothing clears", "the closure clears", "the loop clears (missed)"],
)
def test_a_closure_with_a_loop(clear: str, before: str, found: bool, size: int) -> None:
    findings = findings_of(SCRIPT.format(clear=clear, before=before, size=size))
    assert [(each.code, each.line) for each in findings] == ([("GG201", 12)] if found else [])
