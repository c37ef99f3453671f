"""Two discriminators share the function that trains them, and the optimizer holds only the first."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(6)


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


class Translator:
    def __init__(self, lr=2e-3):
        self.to_b, self.to_a = nn.Linear(2, 2), nn.Linear(2, 2)
        self.critic_a, self.critic_b = Critic(), Critic()
        self.opt_g = torch.optim.Adam([*self.to_b.parameters(), *self.to_a.parameters()], lr=lr)
        self.opt_d = torch.optim.Adam(self.critic_a.parameters(), lr=lr)  # expect: param-not-in-optimizer

    def train_critic(self, critic, real, fake):
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        loss.backward()
        return loss.item()

    def step(self, a, b):
        fake_b, fake_a = self.to_b(a), self.to_a(b)
        for critic in (self.critic_a, self.critic_b):
            critic.requires_grad_(False)
        self.opt_g.zero_grad()
        loss = F.softplus(-self.critic_a(fake_a)).mean() + F.softplus(-self.critic_b(fake_b)).mean()
        loss = loss + 10 * F.l1_loss(self.to_a(fake_b), a) + 10 * F.l1_loss(self.to_b(fake_a), b)
        loss.backward()
        self.opt_g.step()
        for critic in (self.critic_a, self.critic_b):
            critic.requires_grad_(True)
        self.opt_d.zero_grad()
        self.train_critic(self.critic_a, a, fake_a)
        self.train_critic(self.critic_b, b, fake_b)
        self.opt_d.step()
        return loss.item()


translator = Translator()
for it in range(16):
    a = torch.randn(32, 2)
    loss = translator.step(a, torch.randn(32, 2) * 0.5 + 1)
    if it % 8 == 7:
        print(f"iteration {it} loss {loss:.4f}")
