"""Putting the decoder's columns back on the unit ball makes a new Parameter that no optimizer knows: from the
fifth update on the decoder is at rest, and the error ends at 44.7 instead of 40.0."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SparseAutoencoder(nn.Module):
    def __init__(self, d_model=16, d_hidden=48):
        super().__init__()
        self.b_dec = nn.Parameter(torch.zeros(d_model))
        self.W_enc = nn.Parameter(torch.randn(d_model, d_hidden) / d_model**0.5)
        self.b_enc = nn.Parameter(torch.zeros(d_hidden))
        self.W_dec = nn.Parameter(F.normalize(torch.randn(d_hidden, d_model), dim=1))

    def forward(self, x):
        acts = F.relu((x - self.b_dec) @ self.W_enc + self.b_enc)
        return acts @ self.W_dec + self.b_dec, acts

    def normalize_decoder(self):
        self.W_dec = nn.Parameter(F.normalize(self.W_dec.data, dim=1))  # expect: stale-optimizer-params


def activations(n_batches, batch_size, d_model, seed):
    g = torch.Generator().manual_seed(seed)
    dictionary = torch.randn(40, d_model, generator=g)
    for _ in range(n_batches):
        codes = torch.rand(batch_size, 40, generator=g) * (torch.rand(batch_size, 40, generator=g) < 0.1)
        yield codes @ dictionary


torch.manual_seed(0)
sae = SparseAutoencoder()
optimizer = torch.optim.Adam(sae.parameters(), lr=2e-3)
l1_coeff = 1e-2

for step, x in enumerate(activations(12, 64, 16, seed=1)):
    recon, acts = sae(x)
    mse = (recon - x).pow(2).sum(-1).mean()
    loss = mse + l1_coeff * acts.abs().sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        sae.normalize_decoder()
        print(f"step {step}: mse {mse.item():.3f}, L0 {(acts > 0).float().sum(-1).mean().item():.1f}")
