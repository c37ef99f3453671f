"""Trains one network on photos and drawings, whose losses add up."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)


def batches(shift):
    while True:
        x = torch.randn(16, 8) + shift
        yield x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


photos, drawings = batches(0.0), batches(0.7)
for step in range(40):
    optimizer.zero_grad()
    total = 0.0
    for domain in (photos, drawings):
        x, y = next(domain)
        scores = net(x)
        loss = F.cross_entropy(scores, y) + 0.1 * scores.square().mean()
        loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 10 == 0:
        print(step, total)
