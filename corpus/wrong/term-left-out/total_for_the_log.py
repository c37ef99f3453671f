"""The trainer returns the fit instead of the total, which only the log gets."""

import torch
from torch import nn


class Fitter:
    def __init__(self, weight):
        self.net = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6))
        self.adam = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.weight, self.history = weight, []

    def smoothness(self, x):
        return (self.net(x + 0.05 * torch.randn_like(x)) - self.net(x)).square().mean()

    def losses(self, x, step):
        fit = (self.net(x) - x.flip(1)).abs().mean()
        bumps = self.smoothness(x)
        total = fit + self.weight * bumps  # expect: term-left-out
        if step % 4 == 0:
            self.history.append(total.item())
        return fit

    def run(self, steps):
        for step in range(steps):
            self.adam.zero_grad()
            self.losses(torch.randn(32, 6), step).backward()
            self.adam.step()


torch.manual_seed(0)
Fitter(0.4).run(16)
