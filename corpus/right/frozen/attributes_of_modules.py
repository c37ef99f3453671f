"""A module has a field of its own that is called requires_grad, and parameters carry flags."""

import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, n, requires_grad=True):
        super().__init__()
        self.requires_grad = requires_grad
        self.w = nn.Parameter(torch.ones(n), requires_grad=requires_grad)

    def forward(self, x):
        return x * self.w


torch.manual_seed(22)
net = nn.Sequential(nn.Linear(5, 20), Gate(20), nn.ELU(), Gate(20, requires_grad=False), nn.Linear(20, 1))
for p in net.parameters():
    p.is_expert = False
opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01)
for i in range(10):
    opt.zero_grad()
    loss = net(torch.randn(8, 5)).square().mean()
    loss.backward()
    opt.step()
print(loss.item())
