"""Weights are projected into a new leaf, which a new optimizer gets. A mask is fixed after its own phase."""

import torch

torch.manual_seed(0)
true = torch.softmax(torch.randn(5), 0)
w = torch.full((5,), 0.2, requires_grad=True)
bias = torch.zeros(1, requires_grad=True)
mask = torch.zeros(5, requires_grad=True)


def fit(optimizer):
    x = torch.randn(32, 5)
    loss = (x @ (w * torch.sigmoid(mask)) + bias - x @ true - 0.2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


optimizer = torch.optim.SGD([mask, bias], lr=0.5)
for _ in range(15):
    fit(optimizer)
    w.grad = None
with torch.no_grad():
    mask = mask.clamp(-1, 1)
for _ in range(4):
    optimizer = torch.optim.SGD([w, bias], lr=0.05)
    for _ in range(10):
        loss = fit(optimizer)
    with torch.no_grad():
        w = w.clamp(min=0) / w.sum()
    w.requires_grad_()
print(f"{loss:.4f}")
