"""Contrastive pretraining with a momentum encoder. Its weights, averages of the encoder's, keep a graph, so the keys
also train the encoder."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Momentum:
    """The key encoder, a slowly moving copy of the query encoder."""

    def __init__(self, encoder, rate):
        self.encoder = encoder
        self.keys = copy.deepcopy(encoder)
        self.rate = rate

    def follow(self):
        for mine, theirs in zip(self.keys.modules(), self.encoder.modules(), strict=True):
            for name, weight in theirs.named_parameters(recurse=False):
                old = getattr(mine, name).detach()
                if name in mine._parameters:
                    del mine._parameters[name]
                setattr(mine, name, old + self.rate * (weight - old))  # expect: attached-target

    def __call__(self, x):
        return F.normalize(self.keys(x), dim=1)


def noisy(x):
    return x + 0.1 * torch.randn_like(x)


torch.manual_seed(3)
data = torch.randn(96, 12)
encoder = nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 8))
keys = Momentum(encoder, rate=0.05)
opt = torch.optim.Adam(encoder.parameters(), lr=3e-3)
for epoch in range(3):
    for x in data[torch.randperm(96)].split(32):
        queries = F.normalize(encoder(noisy(x)), dim=1)
        similarity = queries @ keys(noisy(x)).T / 0.2
        loss = F.cross_entropy(similarity, torch.arange(len(x)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        keys.follow()
    print(f"epoch {epoch} loss {loss.item():.4f}")
