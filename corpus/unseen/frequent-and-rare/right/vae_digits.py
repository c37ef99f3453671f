"""VAE on digits. KL and reconstruction are both summed over their dimensions and averaged over
the batch; .item() is used only for what is logged."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class VAE(nn.Module):
    def __init__(self, d_in=64, d_hid=32, d_z=4):
        super().__init__()
        self.enc = nn.Linear(d_in, d_hid)
        self.mu = nn.Linear(d_hid, d_z)
        self.logvar = nn.Linear(d_hid, d_z)
        self.dec = nn.Sequential(nn.Linear(d_z, d_hid), nn.ReLU(), nn.Linear(d_hid, d_in))

    def encode(self, x):
        h = F.relu(self.enc(x))
        return self.mu(h), self.logvar(h)

    def reparameterize(self, mu, logvar):
        std = (0.5 * logvar).exp()
        return mu + std * torch.randn_like(std)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        return self.dec(z), mu, logvar


def elbo_terms(recon_logits, x, mu, logvar):
    recon = F.binary_cross_entropy_with_logits(recon_logits, x, reduction="none").sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return recon, kl


def train():
    torch.manual_seed(8)
    x_all = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    beta = 1.0
    log = []
    for step in range(28):
        xb = x_all[torch.randint(0, len(x_all), (128,))]
        logits, mu, logvar = model(xb)
        recon, kl = elbo_terms(logits, xb, mu, logvar)
        kl_value = kl.item()
        loss = recon + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append((recon.item(), kl_value))
    return log


log = train()
print("step  recon   kl")
for s in range(0, len(log), 9):
    print(f"{s:4d}  {log[s][0]:.3f}  {log[s][1]:.4f}")
