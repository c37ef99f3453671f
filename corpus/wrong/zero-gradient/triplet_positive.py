"""The positive is compared with itself instead of the anchor: the first half of the triplet loss is a constant."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
for i in range(10):
    anchor = torch.randn(16, 6)
    positive, negative = anchor + 0.1 * torch.randn_like(anchor), torch.randn(16, 6)
    near = (encoder(positive) - encoder(positive)).pow(2).sum(1)  # expect: zero-gradient
    far = (encoder(anchor) - encoder(negative)).pow(2).sum(1)
    loss = torch.relu(near - far + 1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
