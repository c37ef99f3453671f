"""The loss adds a weighed term inline, and the same term with its weight is printed apart."""

import torch
from torch import nn


def prior_kl(mean, log_var):
    return 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()


torch.manual_seed(0)
encoder, decoder = nn.Linear(8, 4), nn.Linear(2, 8)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
beta = 0.3
for step in range(8):
    x = torch.randn(32, 8)
    mean, log_var = encoder(x).chunk(2, dim=1)
    code = mean + (log_var / 2).exp() * torch.randn_like(mean)
    error = nn.functional.mse_loss(decoder(code), x)
    loss = error + beta * prior_kl(mean, log_var)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    divergence = beta * prior_kl(mean, log_var)
    total = error + prior_kl(mean, log_var)
    print(f"{step} {divergence.item():.3f} {total.item():.3f}")
