"""Looks as if each task's gradient included those before it: nothing clears between the tasks, and the differences of
the running sums are the gradients of each."""

import itertools

import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
heads = nn.ModuleList(nn.Linear(24, 1) for _ in range(3))
opt = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.05)
for step in range(12):
    x = torch.randn(40, 8)
    features = trunk(x)
    opt.zero_grad()
    sums = [[torch.zeros_like(p) for p in trunk.parameters()]]
    for i, head in enumerate(heads):
        loss = nn.functional.mse_loss(head(features).squeeze(1), x[:, i])
        loss.backward(retain_graph=True)
        sums.append([p.grad.clone() for p in trunk.parameters()])
    each = [[b - a for a, b in zip(*pair)] for pair in itertools.pairwise(sums)]
    for p, *grads in zip(trunk.parameters(), *each):
        weights = torch.stack([1 / (1e-8 + g.norm()) for g in grads])
        p.grad = sum(w * g for w, g in zip(weights / weights.sum(), grads))
    opt.step()
    print(step, [round(sum(g.norm().item() for g in grads), 3) for grads in each])
