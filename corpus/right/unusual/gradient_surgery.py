"""Looks like double counting and gradients thrown away: PCGrad takes one gradient per task, projects those
that conflict, and writes the sum into .grad itself."""

import random

import torch
import torch.nn.functional as F
from torch import nn


def flat(grads, params):
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, params)])


def pc_backward(losses, params):
    task_grads = []
    for k, loss in enumerate(losses):
        grads = torch.autograd.grad(loss, params, retain_graph=k < len(losses) - 1, allow_unused=True)
        task_grads.append(flat(grads, params))
    projected = [g.clone() for g in task_grads]
    for g in projected:
        for other in random.sample(task_grads, len(task_grads)):
            inner = torch.dot(g, other)
            if inner < 0:
                g -= inner / other.norm().pow(2) * other
    merged = torch.stack(projected).sum(0)
    for p, g in zip(params, merged.split([p.numel() for p in params])):
        p.grad = g.view_as(p).clone()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.a, self.b = nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x):
        h = self.shared(x)
        return self.a(h).squeeze(1), self.b(h).squeeze(1)


random.seed(0)
torch.manual_seed(0)
x = torch.randn(128, 8)
target_a, target_b = x[:, 0] - x[:, 1], (x[:, 1] - x[:, 0]).abs()
net = TwoHeads()
params = list(net.parameters())
opt = torch.optim.Adam(params, lr=3e-3)
for epoch in range(2):
    for i in range(0, 128, 32):
        a, b = net(x[i : i + 32])
        losses = [F.mse_loss(a, target_a[i : i + 32]), F.mse_loss(b, target_b[i : i + 32])]
        pc_backward(losses, params)
        opt.step()
    print(epoch, [round(loss.item(), 4) for loss in losses])
