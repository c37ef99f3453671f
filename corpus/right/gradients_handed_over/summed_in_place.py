"""The gradients of two workers are summed anew in each step: None first, then a copy, then the second in place."""

import copy

import torch
from torch import nn

torch.manual_seed(17)
shared = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
workers = [copy.deepcopy(shared) for _ in range(2)]
opt = torch.optim.SGD(shared.parameters(), lr=0.1)
for step in range(14):
    for worker in workers:
        worker.load_state_dict(shared.state_dict())
        worker.zero_grad()
        x = torch.randn(16, 4)
        loss = nn.functional.cross_entropy(worker(x), (x[:, 0] > 0).long()) / 2
        loss.backward()
    for p, first, second in zip(shared.parameters(), *(worker.parameters() for worker in workers)):
        p.grad = None
        p.grad = first.grad.clone()
        p.grad += second.grad
    opt.step()
print(f"{loss.item():.4f}")
