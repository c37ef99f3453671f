"""Adapters are inserted into a loaded network before all of it is frozen, so only the new output layer is trained."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(7)


def network(classes):
    return nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, classes))


class LowRank(nn.Module):
    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer
        self.reduce = nn.Linear(layer.in_features, rank, bias=False)
        self.expand = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.expand.weight)

    def forward(self, x):
        return self.layer(x) + self.expand(self.reduce(x))


saved = network(8).state_dict()
model = network(8)
model.load_state_dict(saved)
for place in (0, 2):
    model[place] = LowRank(model[place])
model.requires_grad_(False)  # expect: param-not-in-optimizer
model[4] = nn.Linear(48, 3)
weights = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(weights, lr=5e-3)
inputs = torch.randn(192, 16)
labels = inputs[:, :3].argmax(1)
for epoch in range(4):
    for rows in torch.randperm(192).split(48):
        loss = F.cross_entropy(model(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}, loss {loss.item():.4f}")
