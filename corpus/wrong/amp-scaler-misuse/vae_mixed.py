"""Only the reconstruction is scaled; the divergence is added afterwards and is divided away by the scaler: at
1/1024 of its weight it comes to 1.14 in place of 0.17.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(37)

beta = 4.0
latent_dim = 6


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 4, stride=2, padding=1)
        self.to_stats = nn.Linear(8 * 16, 2 * latent_dim)

    def forward(self, x):
        return self.to_stats(F.relu(self.conv(x)).flatten(1)).chunk(2, dim=1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(latent_dim, 8 * 16)
        self.deconv = nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)

    def forward(self, z):
        return self.deconv(F.relu(self.fc(z)).view(-1, 8, 4, 4))


def blobs(n):
    r = torch.arange(8.0)
    c = torch.rand(n, 2) * 5 + 1
    d = (r.view(1, -1, 1) - c[:, :1, None]) ** 2 + (r.view(1, 1, -1) - c[:, 1:, None]) ** 2
    return torch.exp(-d / 3).unsqueeze(1)


data = blobs(96)
enc, dec = Encoder(), Decoder()
params = list(enc.parameters()) + list(dec.parameters())
optimizer = torch.optim.Adam(params, lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

for epoch in range(2):
    rec_sum = kl_sum = 0.0
    for x in data[torch.randperm(len(data))].split(16):
        with torch.autocast("cpu", dtype=torch.float16):
            mu, logvar = enc(x)
            z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
            recon = dec(z)
        rec = F.mse_loss(recon.float(), x, reduction="sum") / len(x)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).float().sum(1).mean()
        optimizer.zero_grad()
        total = scaler.scale(rec) + beta * kl  # expect: amp-scaler-misuse
        total.backward()
        scaler.step(optimizer)
        scaler.update()
        rec_sum, kl_sum = rec_sum + rec.item(), kl_sum + kl.item()
    print(f"epoch {epoch}: rec {rec_sum / 6:.4f} kl {kl_sum / 6:.4f}")
