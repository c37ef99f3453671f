"""The result of a layer norm is dropped."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc1 = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.fc2 = nn.Linear(d, d)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        self.norm(h)  # expect: unreached-parameter
        return x + self.fc2(h)


torch.manual_seed(0)
net = nn.Sequential(Block(8), Block(8), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for i in range(15):
    x = torch.randn(16, 8)
    loss = (net(x).squeeze(1) - x.mean(1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
