"""The warm-up is as many iterations long as an epoch or two, but a call after each epoch advances it."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR

torch.manual_seed(0)
EPOCHS, WARMUP_ITERS = 4, 16
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
warmup = LinearLR(opt, start_factor=0.05, total_iters=WARMUP_ITERS)
x = torch.randn(80, 6)
y = x.sin().sum(1, keepdim=True)


def epoch(loss_fn):
    for rows in torch.randperm(len(x)).split(8):
        opt.zero_grad()
        loss_fn(net(x[rows]), y[rows]).backward()
        opt.step()


for _ in range(EPOCHS):
    epoch(nn.functional.mse_loss)
    warmup.step()  # expect: scheduler-cadence
