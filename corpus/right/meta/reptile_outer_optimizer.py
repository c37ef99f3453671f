"""Looks like gradients that no loss has made: Reptile hands the difference of two networks to an outer optimizer."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)


class Waves:
    """Sine waves of random height and phase."""

    def __init__(self, shots):
        height, phase = 0.5 + 2 * torch.rand(1), math.pi * torch.rand(1)
        self.x = torch.rand(shots, 1) * 10 - 5
        self.y = height * torch.sin(self.x + phase)


class MetaLearner:
    def __init__(self, outer_lr=0.5, inner_lr=0.02, inner_steps=4):
        self.net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
        self.outer = torch.optim.SGD(self.net.parameters(), lr=outer_lr)
        self.inner_lr, self.inner_steps = inner_lr, inner_steps

    def adapt(self, waves):
        learner = copy.deepcopy(self.net)
        inner = torch.optim.SGD(learner.parameters(), lr=self.inner_lr)
        for _ in range(self.inner_steps):
            loss = F.mse_loss(learner(waves.x), waves.y)
            inner.zero_grad()
            loss.backward()
            inner.step()
        return learner, loss.item()

    def iterate(self, waves):
        learner, loss = self.adapt(waves)
        self.outer.zero_grad()
        for slow, fast in zip(self.net.parameters(), learner.parameters()):
            slow.grad = slow.detach() - fast.detach()
        self.outer.step()
        return loss


meta = MetaLearner()
for iteration in range(10):
    loss = meta.iterate(Waves(shots=16))
    if iteration % 5 == 4:
        print(f"iteration {iteration + 1}, inner loss {loss:.4f}")
