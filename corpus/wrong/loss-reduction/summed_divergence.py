"""The reconstruction is a mean over samples and features, and the KL term a sum over the whole batch: it weighs 32
times as much as in a batch of one sample, and the codes collapse to the prior."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.distributions import Normal, kl_divergence

torch.manual_seed(0)
table = torch.tensor(load_wine().data[:160], dtype=torch.float32)
table = (table - table.mean(0)) / table.std(0)


class TableVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 6))
        self.decoder = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 13))

    def forward(self, x):
        mean, log_std = self.encoder(x).chunk(2, dim=-1)
        posterior = Normal(mean, log_std.exp())
        return self.decoder(posterior.rsample()), posterior


vae = TableVAE()
optimizer = torch.optim.Adam(vae.parameters(), lr=3e-3)
prior = Normal(0.0, 1.0)
for epoch in range(3):
    for x in table.split(32):
        optimizer.zero_grad()
        output, posterior = vae(x)
        mse = nn.functional.mse_loss(output, x)
        kl = kl_divergence(posterior, prior).sum()  # expect: loss-reduction
        (mse + kl).backward()
        optimizer.step()
    print(f"epoch {epoch} mse {mse.item():.3f} kl {kl.item():.3f}")
