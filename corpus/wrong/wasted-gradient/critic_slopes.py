"""The critic's step computes gradients for the whole generator that are cleared unused, a ninth of all work. Its penalty
asks for the slope at the fakes, so a mere detach() would make it fail."""

import argparse

import torch
from torch import nn


def ring(n):
    angle = 6.2832 * torch.rand(n)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


def slope(critic, at):
    scores = critic(at)
    (g,) = torch.autograd.grad(scores.sum(), at, create_graph=True)
    return scores, g.norm(dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--penalty", type=float, default=0.5)
    args = parser.parse_args()
    torch.manual_seed(5)
    generator = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
    g_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    c_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))

    for step in range(args.steps):
        fake = generator(torch.randn(48, 4))  # expect: wasted-gradient
        fake_scores, steepness = slope(critic, fake)
        c_loss = fake_scores.mean() - critic(ring(48)).mean() + args.penalty * (steepness - 1).pow(2).mean()
        c_opt.zero_grad()
        c_loss.backward()
        c_opt.step()

        g_loss = -critic(generator(torch.randn(48, 4))).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        if step % 4 == 3:
            print(f"{step} critic {c_loss.item():.4f} generator {g_loss.item():.4f}")


main()
