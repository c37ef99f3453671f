"""Weight decay is written as an addition of the weights to themselves, with a negative factor."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
lr, weight_decay = 1e-2, 0.1
optimizer = torch.optim.Adam(model.parameters(), lr=lr)
x = torch.randn(64, 6)
y = x[:, :1] * x[:, 1:2]
for step in range(10):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p, alpha=-lr * weight_decay)
    optimizer.step()
print(loss.item())
