"""The loss weighs the divergence less than the bound that the log shows, and tests report another sum."""

import torch
from torch import nn

torch.manual_seed(0)
encode, decode = nn.Linear(8, 4), nn.Linear(2, 8)
optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=1e-2)


def bounds(x):
    mean, logvar = encode(x).chunk(2, dim=1)
    out = decode(mean + (logvar / 2).exp() * torch.randn_like(mean))
    likelihood = -(x - out).square().sum(1).mean()
    return likelihood, -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()


held_out = torch.randn(32, 8)
for step in range(12):
    likelihood, gap = bounds(torch.randn(16, 8))
    loss = 0.1 * gap - likelihood
    bound = likelihood - gap
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        likelihood, gap = bounds(held_out)
    print(
        f"step {step + 1} bound {bound:.3f} held out {(likelihood - gap).item():.3f} {(likelihood + gap).item():.3f}"
    )
