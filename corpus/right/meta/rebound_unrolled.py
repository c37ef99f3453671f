"""Unrolled inner steps: w = w - lr * g with create_graph, 3 steps, then an outer loss."""

import torch

torch.manual_seed(0)
w0 = torch.randn(3, 1, requires_grad=True)
opt = torch.optim.SGD([w0], lr=0.05)
for task in range(8):
    w = w0
    for k in range(3):
        x = torch.randn(16, 3)
        loss = ((x @ w).squeeze() - x.sum(1)).pow(2).mean()
        (g,) = torch.autograd.grad(loss, w, create_graph=True)
        w = w - 0.1 * g
    x = torch.randn(16, 3)
    outer = ((x @ w).squeeze() - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    outer.backward()
    opt.step()
