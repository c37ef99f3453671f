"""Copies of gradients that include those of earlier losses are reported if the script combines them as they are."""

import pytest

from tests.checker.rules._watched import findings_of

SCRIPT = """
import torch

net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(6):
    losses = net(torch.randn(16, 4)).square().mean(0)
    optimizer.zero_grad()
    copies = []
    for i, loss in enumerate(losses):
        {before}
        loss.backward(retain_graph=True)
        {copied}
    {combined}
    for p, *grads in zip(net.parameters(), *copies):
        p.grad = {new}
    optimizer.step()
"""
COPY = "copies.append([p.grad.clone() for p in net.parameters()])"
SMALLEST = "torch.stack(grads).abs().amin(0)"


@pytest.mark.parametrize(
    ("before", "copied", "combined", "new", "found"),
    [
        ("pass", COPY, "pass", SMALLEST, True),
        ("net.zero_grad()", COPY, "pass", SMALLEST, False),
        ("net.weight.grad = net.bias.grad = None", COPY, "pass", SMALLEST, False),
        ("pass", COPY, "copies = copies[-1:]", "grads[0] / 2", False),
        ("pass", COPY, "pass", "p.grad / 2", False),
        ("pass", f"if i == 1: {COPY}", "pass", "grads[0] / 2", False),
        ("pass", COPY, "copies = copies[0], [b - a for a, b in zip(*copies)]", SMALLEST, False),
    ],
    ids=["added up", "cleared", "set to None", "the last one", "shown", "copied once", "differences"],
)
def test_copies_of_gradients_in_a_loop(
    before: str, copied: str, combined: str, new: str, found: bool
) -> None:
    script = SCRIPT.format(before=before, copied=copied, combined=combined, new=new)
    errors = [each for each in findings_of(script) if each.severity != "info"]
    assert [(each.code, each.line) for each in errors] == ([("GG201", 12)] if found else [])
