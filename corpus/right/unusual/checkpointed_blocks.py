"""Looks like forward passes under no_grad: activation checkpointing runs each block again during the
backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Deep(nn.Module):
    def __init__(self, width=24, depth=6):
        super().__init__()
        self.inp = nn.Linear(5, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))
            for _ in range(depth)
        )
        self.tail = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, 2)

    def forward(self, x):
        h = self.inp(x)
        for i, block in enumerate(self.blocks):
            h = h + checkpoint(block, h, use_reentrant=bool(i % 2))
        h = checkpoint_sequential(self.tail, 2, h, use_reentrant=False)
        return self.out(h)


torch.manual_seed(0)
x = torch.randn(80, 5)
y = (x.sum(1) > 0).long()
model = Deep()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
for epoch in range(2):
    for i in range(0, 80, 20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[i : i + 20]), y[i : i + 20])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
