"""The target of Q-learning is detached, and comes from the same network."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
gamma = 0.99
for step in range(30):
    s, s2 = torch.randn(32, 4), torch.randn(32, 4)
    a, r, done = torch.randint(2, (32, 1)), torch.randn(32), torch.zeros(32)
    value = q(s).gather(1, a).squeeze(1)
    target = r + gamma * (1 - done) * q(s2).max(1).values.detach()
    loss = F.smooth_l1_loss(value, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
