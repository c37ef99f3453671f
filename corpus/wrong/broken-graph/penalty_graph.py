"""The inner gradient of the penalty is taken without create_graph, so the penalty is a constant to the critic and
holds its slope nowhere."""

import torch
import torch.nn as nn
from torch import autograd


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, x):
        return self.main(x).view(-1)


def calc_gradient_penalty(netD, real, fake, lam):
    alpha = torch.rand(real.size(0), 1)
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    disc_interpolates = netD(interpolates)
    gradients = autograd.grad(  # expect: broken-graph
        outputs=disc_interpolates,
        inputs=interpolates,
        grad_outputs=torch.ones(disc_interpolates.size()),
        retain_graph=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean() * lam


torch.manual_seed(1)
netG = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
netD = Critic()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.9))
optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.9))
CRITIC_ITERS, LAMBDA = 3, 10.0


def inf_train_gen():
    centers = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]) * 2
    while True:
        yield centers[torch.randint(0, 4, (64,))] + 0.05 * torch.randn(64, 2)


data = inf_train_gen()
for epoch in range(2):
    for iteration in range(6):
        for _ in range(CRITIC_ITERS):
            real = next(data)
            with torch.no_grad():
                fake = netG(torch.randn(64, 3))
            netD.zero_grad()
            gp = calc_gradient_penalty(netD, real, fake, LAMBDA)
            d_cost = netD(fake).mean() - netD(real).mean() + gp
            d_cost.backward()
            optimizerD.step()

        for p in netD.parameters():
            p.requires_grad_(False)
        netG.zero_grad()
        g_cost = -netD(netG(torch.randn(64, 3))).mean()
        g_cost.backward()
        optimizerG.step()
        for p in netD.parameters():
            p.requires_grad_(True)
    print(f"epoch {epoch} D {d_cost.item():.3f} GP {gp.item():.3f} G {g_cost.item():.3f}")
