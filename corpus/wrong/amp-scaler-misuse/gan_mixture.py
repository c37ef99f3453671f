"""The discriminator's optimizer is stepped around the scaler and is given gradients times the scale: 128
times too large at the first step, and its weights go 134 times as far in eight.
"""

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.amp import GradScaler, autocast


def sample_mixture(n):
    centres = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    return centres[torch.randint(3, (n,))] + 0.1 * torch.randn(n, 2)


def hinge_d(real, fake):
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def main(steps=8, batch=32, z_dim=8):
    torch.manual_seed(88)
    G = nn.Sequential(nn.Linear(z_dim, 32), nn.ReLU(), nn.Linear(32, 2))
    D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    opt_g = optim.SGD(G.parameters(), lr=0.05)
    opt_d = optim.SGD(D.parameters(), lr=0.02)
    scaler = GradScaler("cpu", init_scale=128.0)

    for step in range(steps):
        real, z = sample_mixture(batch), torch.randn(batch, z_dim)

        with autocast("cpu", dtype=torch.float16):
            fake = G(z)
            d_loss = hinge_d(D(real), D(fake.detach()))
        opt_d.zero_grad()
        scaler.scale(d_loss).backward()
        opt_d.step()  # expect: amp-scaler-misuse

        with autocast("cpu", dtype=torch.float16):
            g_loss = -D(fake).mean()
        opt_g.zero_grad()
        scaler.scale(g_loss).backward()
        scaler.step(opt_g)

        scaler.update()
        print(f"{step:3d} d {d_loss.item():8.3f} g {g_loss.item():8.3f}")


if __name__ == "__main__":
    main()
