"""Looks as if gradients were cleared before any step used them: PCGrad copies each task's gradient, clears it, and writes
the combination to `.grad`."""

import random

import torch
from torch import nn


class PCGrad:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.params = [p for group in optimizer.param_groups for p in group["params"]]

    def pc_backward(self, losses):
        grads = []
        for loss in losses:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward(retain_graph=True)
            flat = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.params]
            grads.append(torch.cat([g.flatten() for g in flat]))
        projected = [g.clone() for g in grads]
        for g in projected:
            for other in random.sample(grads, len(grads)):
                dot = torch.dot(g, other)
                if dot < 0:
                    g -= dot * other / other.norm() ** 2
        start, merged = 0, torch.stack(projected).mean(0)
        for p in self.params:
            p.grad = merged[start : start + p.numel()].view_as(p)
            start += p.numel()


random.seed(0)
torch.manual_seed(0)
trunk, heads = nn.Sequential(nn.Linear(6, 24), nn.Tanh()), nn.ModuleList(nn.Linear(24, 1) for _ in range(3))
optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=5e-3)
surgery = PCGrad(optimizer)
for step in range(12):
    x = torch.randn(40, 6)
    features = trunk(x)
    losses = [
        (head(features).squeeze(1) - x[:, i] * x[:, i + 1]).square().mean() for i, head in enumerate(heads)
    ]
    surgery.pc_backward(losses)
    optimizer.step()
    print(step, [round(loss.item(), 3) for loss in losses])
