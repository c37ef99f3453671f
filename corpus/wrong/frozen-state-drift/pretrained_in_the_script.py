"""The encoder is pretrained and frozen; train() also puts its batch norm back into training mode."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(7)


def pretrained_encoder(steps=6):
    encoder = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    decoder = nn.Linear(8, 6)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for _ in range(steps):
        x = torch.randn(32, 6)
        optimizer.zero_grad()
        F.mse_loss(decoder(encoder(x)), x).backward()
        optimizer.step()
    return encoder


class Probe(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.encoder.requires_grad_(False)
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(self.encoder(x))


probe = Probe(pretrained_encoder())
optimizer = torch.optim.Adam(probe.linear.parameters(), lr=1e-2)
for epoch in range(2):
    probe.train()  # expect: frozen-state-drift
    for _ in range(8):
        x = 2 * torch.randn(32, 6) + 1
        loss = F.cross_entropy(probe(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, f"{loss.item():.4f}")
