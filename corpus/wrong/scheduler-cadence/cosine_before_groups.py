"""The optimizer is made anew with two groups after its scheduler: the schedule moves the rate of the first one, which
never steps, and all steps are made at 0.1."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = CosineAnnealingLR(optimizer, T_max=5)  # expect: scheduler-cadence
# weight decay only for the matrices
decay = [p for p in net.parameters() if p.dim() > 1]
rest = [p for p in net.parameters() if p.dim() <= 1]
optimizer = torch.optim.SGD([{"params": decay, "weight_decay": 1e-3}, {"params": rest}], lr=0.1)

x = torch.randn(100, 6)
y = torch.sin(x.sum(1, keepdim=True))
for epoch in range(5):
    for xb, yb in zip(x.split(50), y.split(50)):
        optimizer.zero_grad()
        loss = F.mse_loss(net(xb), yb)
        loss.backward()
        optimizer.step()
    scheduler.step()
print(loss.item())
