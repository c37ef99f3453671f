"""A batch's outputs are centred by their running mean, which is detached between the steps."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(32, 6)
similar = torch.sign(x @ x.T)
centre = torch.zeros(4)

for _ in range(8):
    z = model(x)
    centre = 0.9 * centre.detach() + 0.1 * model(x + 0.1 * torch.randn_like(x)).mean(0)
    centred = z - centre
    loss = (centred @ centred.T / 4 - similar).square().mean() + 0.01 * centred.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
