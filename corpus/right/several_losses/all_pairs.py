"""All pairs of a batch are compared on purpose."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(15):
    x, y = torch.randn(12, 5), torch.randn(12)
    s = model(x)
    diff = s - s.T
    sign = torch.sign(y[:, None] - y[None, :])
    target = y.unsqueeze(0)
    loss = (
        torch.relu(1 - diff * sign).mean()
        + 0.1 * (s - target).abs().mean()
        + (s - y.unsqueeze(1)).square().mean()
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
