"""A momentum encoder's batch norm follows the data on purpose."""

import torch, copy
from torch import nn

torch.manual_seed(0)


def net(w):
    return nn.Sequential(nn.Linear(6, w), nn.BatchNorm1d(w), nn.ReLU(), nn.Linear(w, 3))


q = net(16)
k = copy.deepcopy(q)
opt = torch.optim.SGD(q.parameters(), 0.05)
for i in range(20):
    x = torch.randn(16, 6)
    with torch.no_grad():
        for a, b in zip(k.parameters(), q.parameters()):
            a.lerp_(b, 0.01)
        t = k(x + 0.1)
    loss = nn.functional.mse_loss(q(x), t)
    opt.zero_grad()
    loss.backward()
    opt.step()
