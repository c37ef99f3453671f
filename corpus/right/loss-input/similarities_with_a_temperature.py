"""Assignments to prototypes are a softmax, and their similarity over a temperature is classified: the second softmax is
over scaled products of probabilities, not over probabilities."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
encoder = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 6))
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)
data = torch.randn(80, 12)
for step in range(8):
    x = data[torch.randint(0, 80, (24,))]
    p = encoder(x + 0.1 * torch.randn_like(x)).softmax(-1)
    q = encoder(x + 0.1 * torch.randn_like(x)).softmax(-1)
    loss = F.cross_entropy(p @ q.T / 0.1, torch.arange(24)) + F.cross_entropy(p / 0.2, q.detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
