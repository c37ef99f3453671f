"""Gradients are taken with autograd.grad per task, projected and written into `.grad` by hand (PCGrad); backward is never
called."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class PCGrad:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.params = [p for g in optimizer.param_groups for p in g["params"]]

    def _flat(self, loss):
        grads = torch.autograd.grad(loss, self.params, retain_graph=True, allow_unused=True)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(self.params, grads)]
        )

    def step(self, losses):
        raw = [self._flat(loss) for loss in losses]
        merged = torch.zeros_like(raw[0])
        for i, g in enumerate(raw):
            g = g.clone()
            others = [h for j, h in enumerate(raw) if j != i]
            random.shuffle(others)
            for h in others:
                dot = g @ h
                if dot < 0:
                    g -= dot / h.pow(2).sum() * h
            merged += g
        offset = 0
        for p in self.params:
            p.grad = merged[offset : offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        self.optimizer.step()


random.seed(1)
torch.manual_seed(1)
trunk, head_a, head_b = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 1)
opt = PCGrad(torch.optim.Adam([*trunk.parameters(), *head_a.parameters(), *head_b.parameters()], lr=0.01))
x = torch.randn(200, 8)
ya, yb = x[:, :1] * x[:, 1:2], -x[:, :1] + x[:, 2:3]
for epoch in range(3):
    for idx in torch.randperm(200).split(25):
        h = torch.relu(trunk(x[idx]))
        la, lb = F.mse_loss(head_a(h), ya[idx]), F.mse_loss(head_b(h), yb[idx])
        opt.step([la, lb])
    print(f"epoch {epoch}: a {la.item():.4f} b {lb.item():.4f}")
