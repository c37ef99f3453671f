"""Groups of four micro-batches, but the last group of an epoch has two and each gets a quarter all the same:
its gradient is half of what it should be.
"""

from itertools import islice

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

ACCUM = 4


def grouped(iterable, n):
    it = iter(iterable)
    while chunk := list(islice(it, n)):
        yield chunk


class VAE(nn.Module):
    def __init__(self, d=36, z=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 2 * z))
        self.decoder = nn.Sequential(nn.Linear(z, 32), nn.ReLU(), nn.Linear(32, d))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def elbo(model, x):
    recon, mu, logvar = model(x)
    rec = F.mse_loss(recon, x, reduction="none").sum(1)
    kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
    return (rec + kld).mean()


def moving_bars(n=144):
    g = torch.Generator().manual_seed(6)
    frames = torch.zeros(n, 6, 6)
    frames[torch.arange(n), torch.randint(6, (n,), generator=g)] = 1.0
    return frames.flatten(1)


def main():
    torch.manual_seed(6)
    loader = DataLoader(moving_bars(), batch_size=24, shuffle=True)
    model = VAE()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        seen = []
        for group in grouped(loader, ACCUM):
            optimizer.zero_grad()
            for x in group:
                loss = elbo(model, x)
                (loss / ACCUM).backward()  # expect: microbatch-normalization
                seen.append(loss.item())
            optimizer.step()
        print(f"Epoch {epoch}: ELBO {sum(seen) / len(seen):.3f}")


main()
