"""The residual du/dt + 1.5 u adds a derivative without a graph: only u is trained by it."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, t):
        return self.net(t)


def residual(model, t):
    t = t.clone().requires_grad_(True)
    u = model(t)
    du = torch.autograd.grad(u.sum(), t, retain_graph=True)[0]  # expect: broken-graph
    return du + 1.5 * u


torch.manual_seed(0)
model = Net()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
start, value = torch.zeros(1, 1), torch.ones(1, 1)
for it in range(10):
    t = torch.rand(64, 1) * 2
    loss = residual(model, t).pow(2).mean() + (model(start) - value).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
