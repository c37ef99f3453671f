"""The scheduler drives an optimizer that never steps, whose rate is copied into the one that does."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
reference = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(90, 8)
y = x.sum(1, keepdim=True).tanh()
for epoch in range(6):
    for group in optimizer.param_groups:
        group["lr"] = schedule.get_last_lr()[0]
    for part in torch.randperm(90).split(30):
        loss = nn.functional.mse_loss(model(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    reference._step_count = getattr(reference, "_step_count", 0) + 1
    schedule.step()
print(loss.item())
