"""A first regression without an optimizer: nothing clears the gradients, so each update is made of all earlier ones."""

import torch

torch.manual_seed(0)
x = torch.randn(64, 3)
y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3
w = torch.randn(3, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for epoch in range(12):
    loss = (x @ w + b - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.01 * w.grad  # expect: missing-zero-grad
        b -= 0.01 * b.grad
print(loss.item())
