"""The second optimizer takes the whole model, so the encoder is stepped twice with one gradient: 4e-3 in the
first update in place of 1e-3."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(23)


class VAE(nn.Module):
    def __init__(self, d=24, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, d))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z), mu, logvar


def elbo(recon, x, mu, logvar):
    bce = F.binary_cross_entropy_with_logits(recon, x, reduction="sum") / len(x)
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return bce + kld


vae = VAE()
enc_opt = torch.optim.Adam(vae.encoder.parameters(), lr=1e-3)
dec_opt = torch.optim.Adam(vae.parameters(), lr=3e-3)  # expect: param-in-multiple-optimizers

data = (torch.rand(128, 1) < torch.rand(1, 24)).float() * (torch.rand(128, 24) < 0.8).float()
for epoch in range(2):
    train_loss = 0
    for x in data.split(32):
        enc_opt.zero_grad()
        dec_opt.zero_grad()
        recon, mu, logvar = vae(x)
        loss = elbo(recon, x, mu, logvar)
        loss.backward()
        enc_opt.step()
        dec_opt.step()
        train_loss += loss.item()
    print("====> Epoch: {} Average loss: {:.4f}".format(epoch, train_loss / 4))
