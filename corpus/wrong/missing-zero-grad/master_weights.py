"""Master weights; only the master's gradients are cleared."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 2).bfloat16()
master = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(master, lr=0.05)
for step in range(20):
    x, y = torch.randn(6, 5).bfloat16(), torch.randn(6, 2).bfloat16()
    optimizer.zero_grad()  # expect: missing-zero-grad
    loss = (model(x) - y).float().pow(2).mean()
    loss.backward()
    for m, p in zip(master, model.parameters()):
        m.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(master, model.parameters()):
            p.copy_(m)
