"""Looks like sums over the batch beside a mean over the batch. One sum is over the weights, whose number happens to be
that of the samples, and the other has a weight that was chosen for a sum."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
head = nn.Linear(16, 2)
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
eye = torch.eye(16)
x = torch.randn(96, 16)
y = (x[:, 0] * x[:, 1] > 0).long()

for epoch in range(2):
    for inputs, targets in zip(x.split(16), y.split(16), strict=True):
        hidden = net(inputs)
        weight = net[0].weight
        orthogonal = ((weight @ weight.T - eye) ** 2).sum()
        sparse = hidden.abs().sum()
        loss = F.cross_entropy(head(hidden), targets) + 0.2 * orthogonal + 1e-4 * sparse
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")
