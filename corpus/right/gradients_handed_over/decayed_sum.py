"""The shared gradients decay before each worker adds its own: momentum by hand, across steps on purpose."""

import copy

import torch
from torch import nn

torch.manual_seed(4)
shared = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))
workers = [copy.deepcopy(shared) for _ in range(2)]
opt = torch.optim.SGD(shared.parameters(), lr=0.05)
for step in range(16):
    worker = workers[step % 2]
    worker.load_state_dict(shared.state_dict())
    x = torch.randn(16, 4)
    loss = nn.functional.cross_entropy(worker(x), (x[:, 0] > 0).long())
    worker.zero_grad()
    loss.backward()
    for ours, theirs in zip(shared.parameters(), worker.parameters()):
        if ours.grad is None:
            ours.grad = theirs.grad.clone()
        else:
            ours.grad *= 0.9
            ours.grad += theirs.grad
    opt.step()
print(f"{loss.item():.4f}")
