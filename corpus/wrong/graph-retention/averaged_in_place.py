"""The teacher's weights follow the student's by lerp_, with a graph. The loss also trains the teacher's output through
the graphs of all averages so far."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Follower:
    def __init__(self, leader, decay):
        self.net, self.decay = copy.deepcopy(leader).eval(), decay
        for weight in self.net.parameters():
            weight.requires_grad = False

    def follow(self, leader):
        for mine, theirs in zip(self.net.parameters(), leader.parameters()):
            mine.lerp_(theirs, 1 - self.decay)  # expect: graph-retention


torch.manual_seed(21)
signals = torch.randn(120, 16).cumsum(1)
encoder = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
follower = Follower(encoder, decay=0.95)
sgd = torch.optim.SGD(encoder.parameters(), lr=0.05)
for epoch in range(2):
    for batch in signals[torch.randperm(120)].split(20):
        near = F.normalize(encoder(batch + 0.05 * torch.randn_like(batch)), dim=1)
        far = F.normalize(follower.net(batch + 0.05 * torch.randn_like(batch)), dim=1)
        loss = F.cross_entropy(near @ far.T / 0.2, torch.arange(len(batch)))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        follower.follow(encoder)
    print(f"epoch {epoch}: {loss.item():.3f}")
