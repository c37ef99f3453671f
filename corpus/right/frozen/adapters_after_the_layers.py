"""Low-rank adapters, zero at first, are frozen while their layers are trained. Then the layers are frozen instead."""

import torch
import torch.nn.functional as F
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def train(network, x, y, steps):
    adam = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=0.01)
    for rows in torch.randint(len(x), (steps, 24)):
        loss = F.mse_loss(network(x[rows]), y[rows])
        adam.zero_grad()
        loss.backward()
        adam.step()
    print(f"loss {loss.item():.4f}")


torch.manual_seed(6)
network = nn.Sequential(Adapted(nn.Linear(5, 12)), nn.Tanh(), Adapted(nn.Linear(12, 2)))
x = torch.randn(200, 5)
for phase, target in enumerate((x[:, :2], x[:, 2:4])):
    for name, p in network.named_parameters():
        p.requires_grad = ("base" in name) == (phase == 0)
    train(network, x, target, steps=20)
