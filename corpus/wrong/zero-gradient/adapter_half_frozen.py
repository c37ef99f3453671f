"""Low-rank adapters on a classifier: the filter that freezes the base by name also freezes the up projections."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Adapted(nn.Module):
    def __init__(self, base, rank=3):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        low = self.down(x)
        return self.base(x) + self.up(low)


model = nn.Sequential(Adapted(nn.Linear(12, 24)), nn.Tanh(), Adapted(nn.Linear(24, 4)))
for name, parameter in model.named_parameters():
    if ".down." not in name:
        parameter.requires_grad_(False)  # expect: zero-gradient
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.0)
x, y = torch.randn(96, 12), torch.randint(4, (96,))
for epoch in range(4):
    for rows, labels in zip(x.split(16), y.split(16)):
        optimizer.zero_grad()
        F.cross_entropy(model(rows), labels).backward()
        optimizer.step()
