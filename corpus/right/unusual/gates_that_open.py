"""Gates that start at zero and are trained (ReZero): the gradient of what they multiply is zero in the first step only.
One of them is trained from the second epoch on."""

import torch
import torch.nn.functional as F
from torch import nn


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + torch.tanh(self.gate) * torch.sigmoid(self.inner(x))


torch.manual_seed(18)
x = torch.randn(96, 8)
y = x[:, :1] * x[:, 1:2]
net = nn.Sequential(nn.Linear(8, 16), Gated(16), Gated(16), nn.Linear(16, 1))
late = net[2].gate.requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
for epoch in range(3):
    late.requires_grad_(epoch > 0)
    for part in torch.randperm(96).split(24):
        loss = F.mse_loss(net(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}")
