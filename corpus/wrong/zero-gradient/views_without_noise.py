"""Two views of the batch that are the same: the augmentation is applied to neither."""

import torch
from torch import nn

torch.manual_seed(0)


def augment(x, strength=0.1):
    noisy = x + strength * torch.randn_like(x)
    return x


net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(15):
    x = torch.randn(32, 6)
    a, b = augment(x), augment(x)
    loss = (net(a) - net(b)).pow(2).sum(1).mean()  # expect: zero-gradient
    opt.zero_grad()
    loss.backward()
    opt.step()
