"""A class keeps the schedule that a function makes, and never advances it: all epochs train at the first rate."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR


def falling(optim, share):
    return ExponentialLR(optim, gamma=share)  # expect: scheduler-cadence


class Fit:
    def __init__(self, net):
        self.net = net
        self.adam = torch.optim.Adam(net.parameters(), lr=0.02)
        self.decay = falling(self.adam, 0.7)
        self.history = []

    def epoch(self, x, y):
        for part in torch.randperm(len(x)).split(16):
            error = (self.net(x[part]) - y[part]).square().mean()
            self.adam.zero_grad()
            error.backward()
            self.adam.step()
        self.history.append(error.item())


torch.manual_seed(12)
x = torch.randn(64, 6)
y = x[:, :1] * x[:, 1:2]
fit = Fit(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1)))
for _ in range(5):
    fit.epoch(x, y)
print([round(each, 3) for each in fit.history])
