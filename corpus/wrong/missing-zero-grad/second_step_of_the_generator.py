"""Every fourth iteration takes a second step for a smooth generator, and nothing clears the adversarial
gradient that the first step has used."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(11)
generator = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 2))
critic = nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
g_optim = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.99))
d_optim = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.99))


def requires_grad(module, flag):
    for param in module.parameters():
        param.requires_grad = flag


for i in range(20):
    angle = 6.28 * torch.rand(32)
    real = torch.stack([angle.cos(), angle.sin()], 1)
    requires_grad(generator, False)
    requires_grad(critic, True)
    fake = generator(torch.randn(32, 4))
    d_loss = F.softplus(critic(fake)).mean() + F.softplus(-critic(real)).mean()
    critic.zero_grad()
    d_loss.backward()
    d_optim.step()

    requires_grad(generator, True)
    requires_grad(critic, False)
    g_loss = F.softplus(-critic(generator(torch.randn(32, 4)))).mean()
    generator.zero_grad()
    g_loss.backward()
    g_optim.step()

    if i % 4 == 0:
        noise = torch.randn(16, 4)
        steps = generator(noise + 0.1 * torch.randn_like(noise)) - generator(noise)
        smooth_loss = steps.square().sum(1).mean()
        (2.0 * smooth_loss).backward()
        g_optim.step()  # expect: missing-zero-grad
        print(f"{i}: d {d_loss.item():.4f} g {g_loss.item():.4f} smooth {smooth_loss.item():.4f}")
