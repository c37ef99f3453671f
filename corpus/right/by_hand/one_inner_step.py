"""One differentiable inner step per task: the outer loss reaches the weights through the line of the inner update."""

import torch

torch.manual_seed(2)
slope, offset = torch.randn(1, requires_grad=True), torch.zeros(1, requires_grad=True)
for task in range(16):
    target = 1 + torch.rand(1)
    x = torch.randn(20)
    ((slope * x + offset - target * x) ** 2).mean().backward(create_graph=True)
    fast = slope
    if slope.grad is not None:
        fast = fast - 0.1 * slope.grad
    slope.grad = offset.grad = None
    x = torch.randn(20)
    outer = ((fast * x + offset - target * x) ** 2).mean()
    outer.backward()
    with torch.no_grad():
        for p in (slope, offset):
            p -= 0.05 * p.grad
            p.grad = None
print(f"{outer.item():.4f}")
