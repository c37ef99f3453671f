"""The batch has as many samples as features: a matrix that is square by chance."""

import torch
from torch import nn

torch.manual_seed(0)
center = nn.Parameter(torch.zeros(8))
scale = nn.Parameter(torch.ones(8))
shift = nn.Linear(8, 1)
opt = torch.optim.SGD([center, scale, *shift.parameters()], 0.1)
for _ in range(15):
    x = torch.randn(8, 8)
    loss = (
        (x - center).pow(2).mean()
        + (x * scale - 1).abs().mean()
        + ((x - shift(x)) ** 2).mean()
        + nn.functional.mse_loss(center.expand(8, 8), x)
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
