"""The evidence lower bound is formatted for the log, and only the reconstruction is back-propagated."""

import torch
from torch import nn

torch.manual_seed(0)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(8, 4)
        self.decode = nn.Linear(2, 8)

    def forward(self, x):
        mean, logvar = self.encode(x).chunk(2, dim=1)
        return self.decode(mean + (logvar / 2).exp() * torch.randn_like(mean)), mean, logvar


def bounds(x, out, mean, logvar):
    likelihood = -(x - out).square().sum(1).mean()
    gap = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()
    return likelihood, gap


model = Coder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(12):
    x = torch.randn(16, 8)
    likelihood, gap = bounds(x, *model(x))
    negative = -(likelihood - gap)  # expect: term-left-out
    optimizer.zero_grad()
    (-likelihood).backward()
    optimizer.step()
    if step % 3 == 0:
        print(f"step {step} bound {negative:.3f} likelihood {likelihood:.3f}")
