"""OneCycle with steps_per_epoch=len(loader), advanced once per window."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def main():
    accum = 2
    loader = DataLoader(TensorDataset(torch.randn(80, 6), torch.randn(80, 1)), batch_size=8)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.OneCycleLR(
        optim, max_lr=0.1, epochs=4, steps_per_epoch=len(loader)
    )  # expect: scheduler-cadence
    for _ in range(4):
        optim.zero_grad()
        for n, (x, y) in enumerate(loader):
            (nn.functional.mse_loss(net(x), y) / accum).backward()
            if n % accum == accum - 1:
                optim.step()
                optim.zero_grad()
                sched.step()


main()
