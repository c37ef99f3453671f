"""Diffusion model with self-conditioning. The first estimate is fed back with its graph, so the
loss is also differentiated through the extra forward pass."""
import argparse
import math

import torch
import torch.nn as nn


def cosine_alphas(steps):
    t = torch.linspace(0, 1, steps + 1)
    f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    return (f / f[0]).clamp(1e-4, 1.0)[1:]


class Denoiser(nn.Module):
    """Predicts the clean point from the noisy point, an earlier estimate and the time."""

    def __init__(self, dim=2, hidden=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * dim + 2, hidden), nn.SiLU(),
            nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, dim),
        )

    def forward(self, x_t, t, estimate):
        emb = torch.stack([torch.sin(t * math.pi), torch.cos(t * math.pi)], 1)
        return self.net(torch.cat([x_t, estimate, emb], 1))


class Diffusion:
    def __init__(self, args):
        self.steps = args.timesteps
        self.alpha_bar = cosine_alphas(args.timesteps)
        self.model = Denoiser()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.self_cond_prob = args.self_cond

    def loss(self, x0):
        k = torch.randint(0, self.steps, (len(x0),))
        a = self.alpha_bar[k].unsqueeze(1)
        x_t = a.sqrt() * x0 + (1 - a).sqrt() * torch.randn_like(x0)
        t = (k + 1) / self.steps
        estimate = torch.zeros_like(x0)
        if torch.rand(()) < self.self_cond_prob:
            estimate = self.model(x_t, t, estimate)  # expect: estimate not detached
        pred = self.model(x_t, t, estimate)
        return (pred - x0).pow(2).mean()

    def train_step(self, x0):
        loss = self.loss(x0)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return loss.item()


def spiral(n):
    r = torch.rand(n).sqrt()
    return torch.stack([r * torch.cos(9 * r), r * torch.sin(9 * r)], 1) + 0.02 * torch.randn(n, 2)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--timesteps", type=int, default=50)
    p.add_argument("--self-cond", type=float, default=0.5)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--iters", type=int, default=30)
    args = p.parse_args()
    torch.manual_seed(181)
    diffusion = Diffusion(args)
    losses = [diffusion.train_step(spiral(128)) for _ in range(args.iters)]
    print(f"mean loss of the first ten {sum(losses[:10]) / 10:.4f}")
    print(f"mean loss of the last ten  {sum(losses[-10:]) / 10:.4f}")


if __name__ == "__main__":
    main()
