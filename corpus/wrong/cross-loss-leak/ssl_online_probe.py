"""The online probe that only measures the self-supervised encoder reads features that are not detached, so the labels train the encoder as well."""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


@dataclass
class SSLConfig:
    epochs: int = 2
    batch_size: int = 64
    width: int = 32
    proj: int = 16
    temperature: float = 0.3
    encoder_lr: float = 0.05
    probe_lr: float = 0.1


class SimCLR(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, cfg.width), nn.ELU(), nn.Linear(cfg.width, cfg.width), nn.ELU()
        )
        self.projector = nn.Sequential(
            nn.Linear(cfg.width, cfg.width), nn.ELU(), nn.Linear(cfg.width, cfg.proj)
        )

    def forward(self, x):
        h = self.encoder(x)
        return h, F.normalize(self.projector(h), dim=1)


def nt_xent(z1, z2, temperature):
    n = len(z1)
    z = torch.cat([z1, z2])
    sim = z @ z.T / temperature
    sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


def augment(x):
    return x * (torch.rand_like(x) > 0.15) + 0.05 * torch.randn_like(x)


class OnlineProbe:
    """Linear classifier trained next to the encoder, for monitoring."""

    def __init__(self, width, lr):
        self.linear = nn.Linear(width, 10)
        self.optimizer = torch.optim.SGD(self.linear.parameters(), lr=lr)

    def loss(self, feats, labels):
        return F.cross_entropy(self.linear(feats), labels)  # expect: cross-loss-leak

    @torch.no_grad()
    def accuracy(self, feats, labels):
        return (self.linear(feats).argmax(1) == labels).float().mean().item()


class Pretrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = SimCLR(cfg)
        self.probe = OnlineProbe(cfg.width, cfg.probe_lr)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.encoder_lr, momentum=0.9)

    def step(self, x, y):
        h1, z1 = self.model(augment(x))
        _, z2 = self.model(augment(x))
        ssl_loss = nt_xent(z1, z2, self.cfg.temperature)
        probe_loss = self.probe.loss(h1, y)
        self.optimizer.zero_grad()
        self.probe.optimizer.zero_grad()
        (ssl_loss + probe_loss).backward()
        self.optimizer.step()
        self.probe.optimizer.step()
        return ssl_loss.item()

    def fit(self, x, y):
        for epoch in range(self.cfg.epochs):
            losses = [self.step(x[i], y[i]) for i in torch.randperm(len(x)).split(self.cfg.batch_size)]
            with torch.no_grad():
                feats, _ = self.model(x)
            acc = self.probe.accuracy(feats, y)
            print(f"epoch {epoch} nt-xent {sum(losses) / len(losses):.4f} probe acc {acc:.3f}")


if __name__ == "__main__":
    torch.manual_seed(29)
    torch.set_num_threads(1)
    data, target = load_digits(return_X_y=True)
    Pretrainer(SSLConfig()).fit(
        torch.tensor(data[:512], dtype=torch.float32) / 16, torch.tensor(target[:512])
    )
