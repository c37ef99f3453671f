"""The discriminator's optimizer is stepped around the scaler, with gradients that still carry the factor 65536."""

import torch
from torch import nn
from torch.amp import GradScaler, autocast

torch.manual_seed(3)
LATENT = 4


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


G, D = mlp(LATENT, 32, 2), mlp(2, 32, 1)
opt_g = torch.optim.RMSprop(G.parameters(), lr=1e-3)
opt_d = torch.optim.RMSprop(D.parameters(), lr=1e-3, eps=1e-3)
scaler = GradScaler("cpu")
bce = nn.BCEWithLogitsLoss()


def real_batch(n):
    angle = torch.rand(n) * 6.2832
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


for epoch in range(2):
    for _ in range(10):
        real = real_batch(32)
        z = torch.randn(32, LATENT)

        opt_d.zero_grad()
        with autocast("cpu", dtype=torch.bfloat16):
            fake = G(z)
            d_loss = bce(D(real), torch.ones(32, 1)) + bce(D(fake.detach()), torch.zeros(32, 1))
        scaler.scale(d_loss).backward()
        opt_d.step()  # expect: amp-scaler-misuse

        opt_g.zero_grad()
        with autocast("cpu", dtype=torch.bfloat16):
            g_loss = bce(D(fake), torch.ones(32, 1))
        scaler.scale(g_loss).backward()
        scaler.step(opt_g)
        scaler.update()
    print(f"[{epoch}] d_loss {d_loss.item():.3f} g_loss {g_loss.item():.3f}")
