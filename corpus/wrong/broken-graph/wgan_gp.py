"""The gradient penalty's inner gradient is taken without create_graph, so the penalty is a constant and the critic is not regularised at all."""

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, x):
        return self.score(self.body(x)).squeeze(-1)


class Generator(nn.Module):
    def __init__(self, latent=3, width=32):
        super().__init__()
        self.latent = latent
        self.net = nn.Sequential(nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, n):
        return self.net(torch.randn(n, self.latent))


def sample_moon(n):
    t = torch.rand(n) * torch.pi
    return torch.stack([t.cos(), t.sin()], 1) + 0.05 * torch.randn(n, 2)


def gradient_penalty(critic, real, fake):
    eps = torch.rand(len(real), 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    score = critic(mixed)
    (grad,) = torch.autograd.grad(score.sum(), mixed, retain_graph=True)  # expect: broken-graph
    return ((grad.norm(2, dim=1) - 1) ** 2).mean()


class WGAN:
    def __init__(self, lr=1e-3, lambda_gp=10.0, n_critic=3):
        self.critic, self.generator = Critic(), Generator()
        self.lambda_gp, self.n_critic = lambda_gp, n_critic
        self.opt_c = torch.optim.Adam(self.critic.parameters(), lr=lr, betas=(0.0, 0.9))
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=(0.0, 0.9))

    def update_critic(self, real):
        fake = self.generator(len(real)).detach()
        wasserstein = self.critic(fake).mean() - self.critic(real).mean()
        penalty = gradient_penalty(self.critic, real, fake)
        loss = wasserstein + self.lambda_gp * penalty
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        return loss.item(), penalty.item()

    def update_generator(self, n):
        self.critic.requires_grad_(False)
        loss = -self.critic(self.generator(n)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.item()

    def train(self, epochs, iters, batch=32):
        for epoch in range(epochs):
            for _ in range(iters):
                for _ in range(self.n_critic):
                    c_loss, gp = self.update_critic(sample_moon(batch))
                g_loss = self.update_generator(batch)
            print(f"epoch {epoch}: critic {c_loss:.4f} gp {gp:.4f} generator {g_loss:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(314)
    WGAN().train(epochs=2, iters=6)
