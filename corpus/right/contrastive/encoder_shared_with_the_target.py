"""The target network shares its encoder with the network, so that a part of the soft update moves values towards
themselves; the head is a copy."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
head = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
online = nn.Sequential(encoder, head)
target = nn.Sequential(encoder, copy.deepcopy(head).requires_grad_(False))
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
for step in range(10):
    s = torch.randn(32, 4)
    with torch.no_grad():
        goal = s[:, 0] + 0.9 * target(s.roll(1, 0)).amax(1)
    loss = nn.functional.mse_loss(online(s).amax(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(target.parameters(), online.parameters()):
            old.lerp_(new, 0.05)
print(loss.item())
