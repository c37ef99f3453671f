"""The generator's adversarial term is computed from `.data`."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.gen = nn.Linear(6, 6)
        self.disc = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        self.og = torch.optim.Adam(self.gen.parameters(), 1e-3)
        self.od = torch.optim.Adam(self.disc.parameters(), 1e-3)

    def d_step(self, real, fake):
        loss = self.disc(fake.detach()).mean() - self.disc(real).mean()
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return loss

    def g_step(self, real, fake):
        score = self.disc(fake.data)  # expect: broken-graph
        adversarial = -score.mean()
        content = (fake - real).abs().mean()
        total = content + 0.01 * adversarial
        self.og.zero_grad()
        total.backward()
        self.og.step()
        return total

    def run(self, n):
        for _ in range(n):
            real = torch.randn(10, 6)
            fake = self.gen(real + 0.1 * torch.randn(10, 6))
            self.d_step(real, fake)
            self.g_step(real, fake)


torch.manual_seed(0)
Trainer().run(20)
