"""The generator's loss is back-propagated first and never cleared in the critic, whose step follows both losses."""

import torch
from torch import nn
from torch.nn.functional import softplus


class Gan:
    def __init__(self, rate):
        self.generator = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
        self.critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
        self.g_optimizer = torch.optim.RMSprop(self.generator.parameters(), lr=rate)
        self.c_optimizer = torch.optim.RMSprop(self.critic.parameters(), lr=rate)

    def training_step(self, real):
        self.g_optimizer.zero_grad()
        self.c_optimizer.zero_grad()  # expect: cross-loss-leak
        fake = self.generator(torch.randn(len(real), 3))
        g_loss = -self.critic(fake).mean()
        g_loss.backward()
        c_loss = (softplus(self.critic(fake.detach())) + softplus(-self.critic(real))).mean()
        c_loss.backward()
        self.g_optimizer.step()
        self.c_optimizer.step()
        return g_loss.item(), c_loss.item()


torch.manual_seed(10)
gan = Gan(rate=1e-3)
for step in range(20):
    g, c = gan.training_step(torch.randn(40, 2) * torch.tensor([0.3, 1.0]) + 1)
    if step % 10 == 9:
        print(f"[{step + 1}] generator {g:.3f} critic {c:.3f}")
