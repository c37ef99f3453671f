"""The KL term is already part of what `elbo` returns and is added once more in the training step."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BayesLinear(nn.Module):
    def __init__(self, n_in, n_out, prior_std=1.0):
        super().__init__()
        self.mu = nn.Parameter(torch.randn(n_out, n_in) / math.sqrt(n_in))
        self.rho = nn.Parameter(torch.full((n_out, n_in), -3.0))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.prior_std = prior_std

    def forward(self, x):
        std = F.softplus(self.rho)
        return F.linear(x, self.mu + std * torch.randn_like(std), self.bias)

    def kl(self):
        std = F.softplus(self.rho)
        r = (std / self.prior_std).pow(2)
        return 0.5 * (r + (self.mu / self.prior_std).pow(2) - 1 - r.log()).sum()


class BayesNet(nn.Module):
    def __init__(self, n_data):
        super().__init__()
        self.l1, self.l2 = BayesLinear(1, 16), BayesLinear(16, 1)
        self.n_data = n_data

    def forward(self, x):
        return self.l2(torch.tanh(self.l1(x)))

    def kl(self):
        return (self.l1.kl() + self.l2.kl()) / self.n_data

    def elbo(self, x, y, noise=0.1):
        nll = ((self(x) - y) ** 2).mean() / (2 * noise**2)
        return -(nll + self.kl())


class Trainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(self, x, y):
        loss = -self.model.elbo(x, y) + self.model.kl()  # expect: double-counting
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


torch.manual_seed(8)
x = torch.rand(200, 1) * 4 - 2
y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)
trainer = Trainer(BayesNet(n_data=200))
for epoch in range(4):
    losses = [trainer.step(x[i], y[i]) for i in torch.randperm(200).split(25)]
    print(f"epoch {epoch}: {sum(losses) / len(losses):.3f}")
