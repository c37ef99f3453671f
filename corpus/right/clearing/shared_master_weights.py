"""fp32 master weights: gradients are copied from the bf16 model, which is cleared."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 2).bfloat16()
master = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(master, lr=0.05)
for step in range(20):
    x, y = torch.randn(6, 5).bfloat16(), torch.randn(6, 2).bfloat16()
    loss = (model(x) - y).float().pow(2).mean()
    loss.backward()
    for m, p in zip(master, model.parameters()):
        m.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(master, model.parameters()):
            p.copy_(m)
    model.zero_grad()
