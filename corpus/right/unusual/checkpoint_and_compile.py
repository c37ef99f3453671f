"""Half of the blocks are run again in backward (activation checkpointing) and the whole is compiled, with the optimizer
made from the original model's parameters."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        return x + self.ff(self.norm(x))


class Stack(nn.Module):
    def __init__(self, d=12, n=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            if self.training and i % 2:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.out(x)


model = Stack()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
compiled = torch.compile(model, backend="eager")
x = torch.randn(200, 12)
y = x[:, :3].prod(1, keepdim=True)
for epoch in range(2):
    compiled.train()
    for xb, yb in zip(x.split(20), y.split(20)):
        loss = nn.functional.mse_loss(compiled(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
