"""An auxiliary term is added as a constant until its head has settled, and with its graph from then on."""

import torch
from torch import nn

torch.manual_seed(0)
trunk, main, aux = nn.Linear(5, 16), nn.Linear(16, 1), nn.Linear(16, 2)
layers = nn.ModuleList([trunk, main, aux])
optimizer = torch.optim.Adam(layers.parameters(), lr=5e-3)


def auxiliary(h, x):
    return (aux(h) - x[:, :2]).square().mean()


for step in range(20):
    x = torch.randn(64, 5)
    h = torch.tanh(trunk(x))
    loss = (main(h).squeeze(1) - x.sum(1)).square().mean()
    extra = auxiliary(h, x)
    if step < 6:
        extra = extra.detach()
    loss = loss + 0.2 * extra
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f}")
