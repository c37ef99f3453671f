"""Looks like backward without step: every parameter has its own optimizer, which steps and clears in a hook
as soon as the gradient is there."""

import torch
from torch import nn


def fuse_into_backward(model, make):
    optimizers = {p: make([p]) for p in model.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return optimizers


class Mixer(nn.Module):
    def __init__(self, tokens=6, dim=10):
        super().__init__()
        self.token = nn.Sequential(nn.Linear(tokens, 12), nn.GELU(), nn.Linear(12, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 16), nn.GELU(), nn.Linear(16, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        x = x + self.token(self.norm1(x).mT).mT
        x = x + self.channel(self.norm2(x))
        return self.head(x.mean(1))


torch.manual_seed(0)
model = Mixer()
optimizers = fuse_into_backward(model, lambda p: torch.optim.AdamW(p, lr=3e-3, foreach=False))

x = torch.randn(96, 6, 10)
y = x.mean(1)[:, :4].argmax(1)
for epoch in range(2):
    for rows in torch.randperm(96).split(24):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
    print(
        f"epoch {epoch} loss {loss.item():.4f}, gradients left {sum(p.grad is not None for p in optimizers)}"
    )
