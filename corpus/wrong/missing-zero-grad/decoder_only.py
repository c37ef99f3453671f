"""Only the decoder's gradients are cleared, while the optimizer also holds the encoder, whose gradients pile up."""

import itertools

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, n, z):
        super().__init__()
        self.body = nn.Linear(n, 24)
        self.mu = nn.Linear(24, z)
        self.logvar = nn.Linear(24, z)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.mu(h), self.logvar(h)


class Decoder(nn.Module):
    def __init__(self, n, z):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, 24), nn.Tanh(), nn.Linear(24, n))

    def forward(self, z):
        return self.net(z)


def elbo(x, encoder, decoder):
    mu, logvar = encoder(x)
    z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
    rec = (decoder(z) - x).pow(2).sum(1).mean()
    kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(1).mean()
    return rec + 0.1 * kl


torch.manual_seed(4)
points = torch.randn(256, 2) @ torch.randn(2, 10) + 0.05 * torch.randn(256, 10)
encoder, decoder = Encoder(10, 2), Decoder(10, 2)
optimizer = torch.optim.SGD(itertools.chain(encoder.parameters(), decoder.parameters()), lr=2e-3)

for epoch in range(4):
    total = 0.0
    for x in points[torch.randperm(256)].chunk(8):
        loss = elbo(x, encoder, decoder)
        decoder.zero_grad()  # expect: missing-zero-grad
        loss.backward()
        optimizer.step()
        total += loss.item() / 8
    print(f"{epoch}: -elbo {total:.3f}")
