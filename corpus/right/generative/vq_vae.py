"""`z + (q - z).detach()` cuts the graph on purpose (straight-through), and each of the codebook and commitment terms has
one side detached."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class VectorQuantizer(nn.Module):
    def __init__(self, n_codes, dim, beta=0.25):
        super().__init__()
        self.codebook = nn.Embedding(n_codes, dim)
        nn.init.uniform_(self.codebook.weight, -0.5, 0.5)
        self.beta = beta

    def forward(self, z):
        idx = torch.cdist(z, self.codebook.weight).argmin(1)
        q = self.codebook(idx)
        loss = F.mse_loss(q, z.detach()) + self.beta * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss, idx


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
        self.vq = VectorQuantizer(8, 4)
        self.dec = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 12))

    def forward(self, x):
        q, vq_loss, idx = self.vq(self.enc(x))
        return self.dec(q), vq_loss, idx


torch.manual_seed(0)
x = torch.randn(6, 12)[torch.randint(0, 6, (256,))] + 0.1 * torch.randn(256, 12)
model = VQVAE()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(3):
    for b in torch.randperm(256).split(32):
        rec, vq_loss, idx = model(x[b])
        loss = F.mse_loss(rec, x[b]) + vq_loss
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f} codes in use {idx.unique().numel()}")
