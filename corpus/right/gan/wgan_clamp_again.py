"""The critic's weights are written by hand after its step (weight clipping), and the generator is trained only in each
fourth iteration."""

import torch
from torch import nn

torch.manual_seed(7)


class WGAN:
    def __init__(self, n_critic=4, clip=0.05):
        self.G = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 2))
        self.C = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))
        self.opt_g = torch.optim.RMSprop(self.G.parameters(), lr=1e-3)
        self.opt_c = torch.optim.RMSprop(self.C.parameters(), lr=1e-3)
        self.n_critic, self.clip = n_critic, clip

    def critic_step(self, real):
        with torch.no_grad():
            fake = self.G(torch.randn(len(real), 3))
        loss = self.C(fake).mean() - self.C(real).mean()
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        for p in self.C.parameters():
            p.data.clamp_(-self.clip, self.clip)
        return -loss.item()

    def generator_step(self, n):
        loss = -self.C(self.G(torch.randn(n, 3))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()


wgan = WGAN()
data = torch.randn(512, 2) @ torch.tensor([[1.0, 0.6], [0.0, 0.4]]) + 1.0
for epoch in range(3):
    for i, real in enumerate(data[torch.randperm(512)].split(32)):
        distance = wgan.critic_step(real)
        if i % wgan.n_critic == 0:
            wgan.generator_step(len(real))
    print(f"epoch {epoch} distance {distance:.5f}")
