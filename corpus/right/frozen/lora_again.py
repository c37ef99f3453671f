"""One of the two low-rank factors starts at zero, so the other's gradient is zero in the first step; the base layers are
frozen."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRA(nn.Module):
    def __init__(self, layer, rank=4, alpha=8.0):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.layer(x) + self.scale * (x @ self.down.T @ self.up.T)


def pretrained():
    torch.manual_seed(100)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


model = pretrained()
for i, layer in enumerate(model):
    if isinstance(layer, nn.Linear):
        model[i] = LoRA(layer)
params = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(params, lr=5e-3)
torch.manual_seed(0)
x = torch.randn(240, 10)
y = (x @ torch.randn(10, 3)).argmax(1)
for epoch in range(3):
    for idx in torch.randperm(240).split(24):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
