"""Looks like an in-place change of parameters: the critic's weights are clamped after each of its steps,
and the generator is stepped only every third time."""

import itertools
import math

import torch
from torch import nn, optim

CLIP, N_CRITIC, LATENT = 0.05, 3, 4


def real_batches(batch, gen):
    while True:
        theta = torch.rand(batch, generator=gen) * 2 * math.pi
        yield torch.stack([theta.cos(), theta.sin()], dim=1) + 0.05 * torch.randn(batch, 2, generator=gen)


def mlp(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 32), nn.LeakyReLU(0.1), nn.Linear(32, n_out))


torch.manual_seed(0)
generator, critic = mlp(LATENT, 2), mlp(2, 1)
opt_g = optim.RMSprop(generator.parameters(), lr=5e-4)
opt_c = optim.RMSprop(critic.parameters(), lr=5e-4)

stream = real_batches(32, torch.Generator().manual_seed(1))
for step, real in enumerate(itertools.islice(stream, 18), start=1):
    opt_c.zero_grad()
    fake = generator(torch.randn(len(real), LATENT)).detach()
    loss_c = critic(fake).mean() - critic(real).mean()
    loss_c.backward()
    opt_c.step()

    for p in critic.parameters():
        p.data.clamp_(-CLIP, CLIP)

    if step % N_CRITIC == 0:
        opt_g.zero_grad()
        loss_g = -critic(generator(torch.randn(32, LATENT))).mean()
        loss_g.backward()
        opt_g.step()
        print(f"step {step:3d}  critic {loss_c.item():+.4f}  generator {loss_g.item():+.4f}")
