"""The two networks of the moving average are swapped: each update moves the trained one 3% back to where it began."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class Ema:
    def __init__(self, model, decay):
        self.model = model
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self):
        for a, b in zip(self.model.parameters(), self.average.parameters()):
            a.mul_(self.decay).add_(b, alpha=1 - self.decay)  # expect: inplace-param-update


model = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 6))
ema = Ema(model, 0.97)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(16):
    x = torch.randn(64, 6)
    noise = torch.randn_like(x)
    loss = nn.functional.mse_loss(model(x + noise), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update()
    if step % 8 == 7:
        with torch.no_grad():
            held_out = nn.functional.mse_loss(ema.average(x + noise), noise)
        print(f"{step + 1} loss {loss.item():.4f} average {held_out.item():.4f}")
