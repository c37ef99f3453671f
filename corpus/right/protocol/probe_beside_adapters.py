"""One function prepares a network for a linear probe or for adapters; the probe, for comparison, leaves them at zero."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)


class LowRank(nn.Module):
    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer
        self.reduce = nn.Parameter(torch.randn(rank, layer.in_features) / 4)
        self.expand = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.reduce.T @ self.expand.T


def prepared(mode):
    model = nn.Sequential(LowRank(nn.Linear(16, 48)), nn.ReLU(), LowRank(nn.Linear(48, 48)), nn.ReLU())
    for name, weight in model.named_parameters():
        if mode == "probe" or "layer" in name:
            weight.requires_grad = False
    return nn.Sequential(model, nn.Linear(48, 3))


inputs = torch.randn(192, 16)
labels = inputs[:, :3].argmax(1)
model = prepared("probe")
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
for epoch in range(4):
    for rows in torch.randperm(192).split(48):
        loss = F.cross_entropy(model(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}, loss {loss.item():.4f}")
