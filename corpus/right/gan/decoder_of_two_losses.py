"""A VAE-GAN: its decoder steps on the reconstruction through the encoder and on the score of prior samples."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mu, self.logvar = nn.Linear(6, 24), nn.Linear(24, 2), nn.Linear(24, 2)

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.mu(h), self.logvar(h)


def sample(mu, logvar):
    return mu + torch.randn_like(mu) * (0.5 * logvar).exp()


torch.manual_seed(9)
enc = Encoder()
dec = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 6))
dis = nn.Sequential(nn.Linear(6, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
opts = {
    name: torch.optim.Adam(net.parameters(), lr=1e-3) for name, net in (("e", enc), ("d", dec), ("c", dis))
}
mix = torch.randn(2, 6)
for step in range(20):
    x = torch.randn(32, 2) @ mix
    with torch.no_grad():
        fake = dec(torch.randn(32, 2))
    opts["c"].zero_grad()
    (F.softplus(-dis(x)) + F.softplus(dis(fake))).mean().backward()
    opts["c"].step()

    opts["e"].zero_grad()
    opts["d"].zero_grad()
    dis.requires_grad_(False)
    score = F.softplus(-dis(dec(torch.randn(32, 2)))).mean()
    (0.1 * score).backward()
    dis.requires_grad_(True)
    mu, logvar = enc(x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    loss = F.mse_loss(dec(sample(mu, logvar)), x) + 0.01 * kl
    loss.backward()
    opts["e"].step()
    opts["d"].step()
    if step % 10 == 9:
        print(f"step {step + 1} loss {loss.item():.3f} score {score.item():.3f}")
