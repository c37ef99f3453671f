"""The discriminator of one direction gets a detached image, and is frozen meanwhile: that term is a constant."""

import itertools

import torch
from torch import nn


class AdversarialLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("real", torch.tensor(1.0))
        self.register_buffer("fake", torch.tensor(0.0))
        self.error = nn.MSELoss()

    def __call__(self, prediction, is_real):
        target = self.real if is_real else self.fake
        return self.error(prediction, target.expand_as(prediction))


def generator():
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 3, padding=1), nn.Tanh())


def discriminator():
    return nn.Sequential(nn.Conv2d(1, 6, 3, 2), nn.LeakyReLU(0.2), nn.Conv2d(6, 1, 3))


class Translator:
    def __init__(self):
        self.to_b, self.to_a = generator(), generator()
        self.judge_a, self.judge_b = discriminator(), discriminator()
        self.gan_loss = AdversarialLoss()
        self.cycle_loss = nn.L1Loss()
        self.opt_g = torch.optim.Adam(itertools.chain(self.to_a.parameters(), self.to_b.parameters()), 2e-4)
        self.opt_d = torch.optim.Adam(
            itertools.chain(self.judge_a.parameters(), self.judge_b.parameters()), 2e-4
        )

    def freeze(self, flag):
        for p in self.opt_d.param_groups[0]["params"]:
            p.requires_grad = not flag

    def update(self, a, b):
        fake_b, fake_a = self.to_b(a), self.to_a(b)
        self.freeze(True)
        self.opt_g.zero_grad()
        self.loss_b = self.gan_loss(self.judge_b(fake_b), True)
        self.loss_a = self.gan_loss(self.judge_a(fake_a.detach()), True)  # expect: broken-graph
        self.loss_cycle = self.cycle_loss(self.to_a(fake_b), a) + self.cycle_loss(self.to_b(fake_a), b)
        (self.loss_a + self.loss_b + 10 * self.loss_cycle).backward()
        self.opt_g.step()
        self.freeze(False)
        self.opt_d.zero_grad()
        for judge, real, fake in ((self.judge_a, a, fake_a), (self.judge_b, b, fake_b)):
            loss = self.gan_loss(judge(real), True) + self.gan_loss(judge(fake.detach()), False)
            (loss * 0.5).backward()
        self.opt_d.step()


torch.manual_seed(0)
model = Translator()
for step in range(8):
    model.update(torch.rand(2, 1, 12, 12), 1 - torch.rand(2, 1, 12, 12) ** 2)
print(f"a {model.loss_a.item():.3f} b {model.loss_b.item():.3f} cycle {model.loss_cycle.item():.3f}")
