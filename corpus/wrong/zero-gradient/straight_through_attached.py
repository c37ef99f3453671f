"""A classifier with a layer of binary activations. The straight-through estimator lacks its detach."""

import torch
from torch import nn
from torch.nn import functional as F


class BinaryBottleneck(nn.Module):
    def __init__(self, features, bits):
        super().__init__()
        self.project = nn.Linear(features, bits)
        self.norm = nn.LayerNorm(bits)

    def forward(self, x):
        soft = torch.sigmoid(self.norm(self.project(x)))
        hard = (soft > 0.5).float()
        return soft + (hard - soft)  # expect: zero-gradient


torch.manual_seed(3)
model = nn.Sequential(BinaryBottleneck(12, 16), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
centers = torch.randn(3, 12)

for step in range(25):
    labels = torch.randint(3, (32,))
    inputs = centers[labels] + 0.3 * torch.randn(32, 12)
    loss = F.cross_entropy(model(inputs), labels)
    # the encoder still moves: this penalty gives it a gradient
    loss = loss + 1e-3 * model[0].project.weight.pow(2).sum() + 1e-3 * model[0].norm.weight.pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
