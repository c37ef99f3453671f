"""An autoencoder's target is its input."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(15):
    x = torch.randn(32, 6)
    x += 0.1
    loss = nn.functional.mse_loss(net(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
