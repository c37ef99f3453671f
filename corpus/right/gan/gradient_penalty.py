"""A gradient is taken inside the loss and back-propagated through (create_graph), and the interpolates require a gradient
although no optimizer holds them."""

import torch
import torch.nn as nn


def gradient_penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_()
    score = critic(mixed)
    (grad,) = torch.autograd.grad(score.sum(), mixed, create_graph=True)
    return (grad.norm(dim=1) - 1).pow(2).mean()


def main(lam=10.0, n_critic=2):
    torch.manual_seed(0)
    gen = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1))
    g_opt = torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.0, 0.9))
    c_opt = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
    for epoch in range(2):
        for it in range(8):
            for _ in range(n_critic):
                t = torch.rand(48) * 6.28
                real = torch.stack([t.cos(), t.sin()], 1)
                fake = gen(torch.randn(48, 2)).detach()
                gp = gradient_penalty(critic, real, fake)
                w = critic(real).mean() - critic(fake).mean()
                c_opt.zero_grad()
                (lam * gp - w).backward()
                c_opt.step()
            critic.requires_grad_(False)
            g_opt.zero_grad()
            (-critic(gen(torch.randn(48, 2))).mean()).backward()
            g_opt.step()
            critic.requires_grad_(True)
        print(f"epoch {epoch} w {w.item():.4f} gp {gp.item():.4f}")


main()
