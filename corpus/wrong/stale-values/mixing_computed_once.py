"""A network whose output is shifted by a learned prior: the prior is computed before the loop, so its steps have no
effect on the loss."""

import torch
from torch import nn


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))
        self.coarse = nn.Parameter(torch.zeros(3))
        self.fine = nn.Parameter(torch.zeros(3))

    def prior(self):
        return self.coarse + self.fine

    def forward(self, x, prior):
        return self.body(x) + prior


def main():
    torch.manual_seed(0)
    net = Shifted()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    prior = net.prior()  # expect: stale-values
    for step in range(16):
        x = torch.randn(24, 5)
        target = torch.stack([x.sum(1), x[:, 0], x[:, 1] * x[:, 2]], 1) + 2
        loss = nn.functional.mse_loss(net(x, prior), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, round(loss.item(), 4))


main()
