"""The smoothed loss is updated in place, with the graph: it keeps the graphs of all steps."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
points = torch.randn(160, 5)
labels = (points.norm(dim=1) > 2).long()
net = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
smoothed = torch.zeros(())
for epoch in range(2):
    for part in torch.randperm(160).split(20):
        loss = F.cross_entropy(net(points[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smoothed.mul_(0.9).add_(0.1 * loss)  # expect: graph-retention
    print(f"{epoch} {smoothed.item():.3f}")
