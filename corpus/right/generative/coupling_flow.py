"""The loss is negative without a bound (a log-density), its target has no labels, and the last layers of the coupling nets
start at zero."""

import math

import torch
import torch.nn as nn
from sklearn.datasets import make_moons


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        return (torch.cat([b, a], 1) if self.flip else torch.cat([a, b], 1)), s.sum(1)


class Flow(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(i % 2)) for i in range(n))

    def log_prob(self, x):
        logdet = 0.0
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        return -0.5 * x.pow(2).sum(1) - math.log(2 * math.pi) + logdet


torch.manual_seed(0)
points = torch.tensor(make_moons(400, noise=0.05, random_state=0)[0], dtype=torch.float32)
flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=5e-3)
for epoch in range(4):
    total = 0.0
    for x in points[torch.randperm(400)].split(40):
        nll = -flow.log_prob(x).mean()
        opt.zero_grad()
        nll.backward()
        opt.step()
        total += nll.item() / 10
    print(f"epoch {epoch} nll {total:.4f}")
