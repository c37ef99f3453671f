"""A list of new tensors, while the loss still uses the old ones."""

import torch

torch.manual_seed(0)
w, b = torch.randn(3, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
for step in range(20):
    x = torch.randn(16, 3)
    loss = ((x @ w + b).squeeze() - x.sum(1)).pow(2).mean()
    loss.backward()
    params = [p - 0.1 * p.grad for p in (w, b)]  # expect: ineffective-step
    w.grad = b.grad = None
print(params)
