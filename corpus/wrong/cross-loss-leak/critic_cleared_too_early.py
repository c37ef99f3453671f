"""The critics are cleared before the generators' loss, not after it, so that each of their steps also
follows that loss."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(16)


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


class Translator:
    def __init__(self, lr=2e-3):
        self.to_b, self.to_a = nn.Linear(2, 2), nn.Linear(2, 2)
        self.critic_a, self.critic_b = Critic(), Critic()
        self.opt_g = torch.optim.Adam([*self.to_b.parameters(), *self.to_a.parameters()], lr=lr)
        self.opt_d = torch.optim.Adam([*self.critic_a.parameters(), *self.critic_b.parameters()], lr=lr)

    def train_critic(self, critic, real, fake):
        loss = ((critic(real) - 1).square().mean() + critic(fake.detach()).square().mean()) / 2
        loss.backward()
        return loss.item()

    def train_generators(self, a, b, fake_a, fake_b):
        loss = (self.critic_a(fake_a) - 1).square().mean() + (self.critic_b(fake_b) - 1).square().mean()
        loss = loss + 10 * F.l1_loss(self.to_a(fake_b), a) + 10 * F.l1_loss(self.to_b(fake_a), b)
        loss.backward()
        return loss.item()

    def step(self, a, b):
        fake_b, fake_a = self.to_b(a), self.to_a(b)
        self.opt_g.zero_grad()
        self.opt_d.zero_grad()  # expect: cross-loss-leak
        loss = self.train_generators(a, b, fake_a, fake_b)
        self.opt_g.step()
        self.train_critic(self.critic_a, a, fake_a)
        self.train_critic(self.critic_b, b, fake_b)
        self.opt_d.step()
        return loss


translator = Translator()
for it in range(16):
    a = torch.randn(32, 2)
    loss = translator.step(a, torch.randn(32, 2) * 0.5 + 1)
    if it % 8 == 7:
        print(f"iteration {it} loss {loss:.4f}")
