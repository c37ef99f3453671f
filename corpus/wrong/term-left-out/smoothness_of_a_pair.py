"""A method returns both terms; their sum goes to the meter, and only the first one is back-propagated."""

import torch
from torch import nn

torch.manual_seed(0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))

    def terms(self, noisy, clean):
        out = self.net(noisy)
        return (out - clean).abs().mean(), out.diff(dim=1).square().mean()


class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
meter = Meter()
for step in range(12):
    clean = torch.randn(8, 16).cumsum(1)
    fit, rough = model.terms(clean + torch.randn(8, 16), clean)
    optimizer.zero_grad()
    fit.backward()
    optimizer.step()
    cost = fit + 0.1 * rough  # expect: term-left-out
    meter.add(cost.item())
print(f"{meter.values[-1]:.3f}")
