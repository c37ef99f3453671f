"""Under no_grad one of two weights is rebound instead of changed: it is a constant from then on."""

import torch

torch.manual_seed(0)
w = torch.randn(3, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for step in range(20):
    x = torch.randn(16, 3)
    loss = ((x @ w + b).squeeze() - x.sum(1)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        if w.grad is not None:
            w = w - 0.1 * w.grad  # expect: ineffective-step
        b -= 0.1 * b.grad
        b.grad.zero_()
