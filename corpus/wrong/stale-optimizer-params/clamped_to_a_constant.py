"""Mixing weights are clamped after each step under no_grad, which makes a constant of them."""

import torch

torch.manual_seed(0)
true = torch.softmax(torch.randn(5), 0)
w = torch.full((5,), 0.2, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
opt = torch.optim.SGD([w, b], lr=0.05)
for step in range(30):
    x = torch.randn(32, 5)
    loss = (x @ w + b - x @ true - 0.2).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        w = w.clamp(min=0) / w.sum()  # expect: stale-optimizer-params
print(f"{loss.item():.4f}")
