"""A trial of few epochs ends in a warm-up that counts epochs."""

import torch
from torch import nn

torch.manual_seed(0)
EPOCHS, WARMUP = 3, 10
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: min((epoch + 1) / WARMUP, 1.0))
x = torch.randn(80, 6)
y = x.sin().sum(1, keepdim=True)
for _ in range(EPOCHS):
    for rows in torch.randperm(len(x)).split(8):
        opt.zero_grad()
        nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
        opt.step()
    schedule.step()
