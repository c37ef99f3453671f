"""Looks like a term that is cut off: SimSiam stops the gradient of one branch, and an online probe reads
the detached features with an optimizer of its own, from the same backward."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class SimSiam(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, dim))
        self.predictor = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, dim))

    def forward(self, a, b):
        za, zb = self.encoder(a), self.encoder(b)
        pa, pb = self.predictor(za), self.predictor(zb)
        return za, self.distance(pa, zb) / 2 + self.distance(pb, za) / 2

    @staticmethod
    def distance(p, z):
        return -F.cosine_similarity(p, z.detach(), dim=-1).mean()


def jitter(x):
    return x * (torch.rand_like(x) > 0.15) + 0.05 * torch.randn_like(x)


def main():
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:256], dtype=torch.float32) / 16, torch.tensor(y[:256])
    model, probe = SimSiam(), nn.Linear(32, 10)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    probe_opt = torch.optim.Adam(probe.parameters(), lr=1e-2)
    for epoch in range(2):
        for idx in torch.randperm(256).split(64):
            z, ssl = model(jitter(x[idx]), jitter(x[idx]))
            probe_loss = F.cross_entropy(probe(z.detach()), y[idx])
            opt.zero_grad()
            probe_opt.zero_grad()
            (ssl + probe_loss).backward()
            opt.step()
            probe_opt.step()
        print(f"epoch {epoch} similarity {-ssl.item():.3f} probe {probe_loss.item():.3f}")


main()
