"""A network predicts a quantile of shape (24, 1) for targets of shape (24,), with a hand-written pinball loss."""

import torch
from torch import nn

torch.manual_seed(0)


def pinball(target, prediction, level):
    error = target - prediction  # expect: unintended-broadcast
    return torch.maximum(level * error, (level - 1) * error).mean()


net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(15):
    x = torch.randn(24, 3)
    y = x[:, 0] + torch.randn(24).abs()
    loss = pinball(y, net(x), 0.9)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
