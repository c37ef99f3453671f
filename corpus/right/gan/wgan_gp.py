"""Looks like a graph kept for nothing: the gradient penalty is differentiated a second time, through
create_graph."""

import torch
from torch import autograd, nn

LAMBDA = 10.0


def gradient_penalty(disc, real, fake):
    alpha = torch.rand(real.size(0), 1).expand_as(real)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = disc(mixed)
    (grads,) = autograd.grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
    )
    return LAMBDA * ((grads.norm(2, dim=1) - 1) ** 2).mean()


def disc_step(disc, gen, opt, real):
    with torch.no_grad():
        fake = gen(torch.randn(len(real), 3))
    cost = disc(fake).mean() - disc(real).mean()
    penalty = gradient_penalty(disc, real, fake)
    opt.zero_grad()
    (cost + penalty).backward()
    opt.step()
    return -cost.item(), penalty.item()


def gen_step(disc, gen, opt, n):
    for p in disc.parameters():
        p.requires_grad_(False)
    opt.zero_grad()
    loss = -disc(gen(torch.randn(n, 3))).mean()
    loss.backward()
    opt.step()
    for p in disc.parameters():
        p.requires_grad_(True)
    return loss.item()


def main():
    torch.manual_seed(21)
    gen = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
    disc = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    opt_d = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.9))
    centers = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.4]])
    for it in range(4):
        for _ in range(3):
            real = centers[torch.randint(3, (32,))] + 0.1 * torch.randn(32, 2)
            w_dist, gp = disc_step(disc, gen, opt_d, real)
        g = gen_step(disc, gen, opt_g, 32)
        print(f"iter {it}: wasserstein {w_dist:.3f} penalty {gp:.3f} generator {g:.3f}")


main()
