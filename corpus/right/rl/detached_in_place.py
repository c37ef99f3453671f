"""The value of the next state is detached in place."""

import copy

import torch
from torch import nn


class Learner:
    def __init__(self):
        self.online = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4))
        self.sync()
        self.adam = torch.optim.Adam(self.online.parameters(), lr=1e-3)

    def sync(self):
        self.slow = copy.deepcopy(self.online)

    def learn(self, seen, chosen, reward, following):
        value = self.online(seen).gather(1, chosen).squeeze(1)
        best = self.slow(following).amax(dim=1)
        best.detach_()
        loss = nn.functional.smooth_l1_loss(value, reward + 0.95 * best)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()


torch.manual_seed(0)
learner = Learner()
for step in range(24):
    seen, following = torch.randn(16, 3), torch.randn(16, 3)
    learner.learn(seen, torch.randint(4, (16, 1)), seen.sum(1), following)
    if step % 8 == 7:
        learner.sync()
