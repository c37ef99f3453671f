"""Vector-quantized autoencoder. The decoder gets the codebook vectors directly, so the
reconstruction loss gives the encoder no gradient."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Quantizer(nn.Module):
    def __init__(self, n_codes, dim, beta=0.25):
        super().__init__()
        self.codebook = nn.Embedding(n_codes, dim)
        nn.init.uniform_(self.codebook.weight, -0.5, 0.5)
        self.beta = beta

    def forward(self, z_e):
        dist = torch.cdist(z_e, self.codebook.weight)
        codes = dist.argmin(dim=1)
        z_q = self.codebook(codes)
        codebook_loss = F.mse_loss(z_q, z_e.detach())
        commitment = F.mse_loss(z_e, z_q.detach())
        return z_q, codebook_loss + self.beta * commitment, codes  # expect: straight-through missing


class VQVAE(nn.Module):
    def __init__(self, groups=4, dim=6, n_codes=16):
        super().__init__()
        self.groups, self.dim = groups, dim
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, groups * dim))
        self.decoder = nn.Sequential(nn.Linear(groups * dim, 48), nn.ReLU(), nn.Linear(48, 64))
        self.quantizer = Quantizer(n_codes, dim)

    def forward(self, x):
        z_e = self.encoder(x).view(-1, self.dim)
        z_q, vq_loss, codes = self.quantizer(z_e)
        recon = self.decoder(z_q.view(-1, self.groups * self.dim))
        return recon, vq_loss, codes


class Experiment:
    def __init__(self, lr=3e-3, batch=128):
        torch.manual_seed(161)
        self.x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
        self.model = VQVAE()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.batch = batch

    def step(self):
        xb = self.x[torch.randint(0, len(self.x), (self.batch,))]
        recon, vq_loss, codes = self.model(xb)
        recon_loss = F.mse_loss(recon, xb)
        loss = recon_loss + vq_loss
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return recon_loss.item(), vq_loss.item(), codes.unique().numel()

    def run(self, steps=30, every=10):
        for s in range(steps):
            recon, vq, used = self.step()
            if s % every == 0 or s == steps - 1:
                print(f"step {s:2d}  recon {recon:.4f}  vq {vq:.4f}  codes used {used}")


Experiment().run()
