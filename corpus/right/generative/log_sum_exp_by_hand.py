"""The largest score is detached, subtracted before the exponential and added after the logarithm: its gradient would
cancel."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
x = torch.randn(64, 8)
y = x[:, :5].argmax(1)
for step in range(8):
    scores = net(x)
    largest = scores.max(1, keepdim=True).values.detach()
    total = (scores - largest).exp().sum(1).log()
    normalizer = total + largest.squeeze(1)
    loss = (normalizer - scores[torch.arange(64), y]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
