"""Two networks with an optimizer each. The first trains for three epochs only: its gradients still add up afterwards, but
no step uses them. The second pauses for an epoch, and what it added up is cleared when it goes on."""

import torch
import torch.nn.functional as F
from torch import nn


def update(net, optimizer, x, y, active):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    if active:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


torch.manual_seed(19)
x = torch.randn(80, 6)
y = (x[:, 0] * x[:, 1] > 0).long()
coarse, fine = nn.Linear(6, 2), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
first, second = (torch.optim.Adam(net.parameters(), lr=0.01) for net in (coarse, fine))
for epoch in range(5):
    second.zero_grad()
    for part in torch.randperm(80).split(10):
        loss = F.cross_entropy(coarse(x[part]), y[part])
        loss.backward()
        if epoch < 3:
            first.step()
            first.zero_grad()
        last = update(fine, second, x[part], y[part], active=epoch != 4)
    print(f"epoch {epoch}: {loss.item():.3f} {last:.3f}")
