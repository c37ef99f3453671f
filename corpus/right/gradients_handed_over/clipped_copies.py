"""Each worker's gradients are clipped and cloned into the central model, whose optimizer steps."""

import copy

import torch
from torch import nn

torch.manual_seed(5)
central = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
workers = [copy.deepcopy(central) for _ in range(2)]
opt = torch.optim.Adam(central.parameters(), lr=5e-3)
loss_fn = nn.CrossEntropyLoss()

for step in range(16):
    worker = workers[step % 2]
    worker.load_state_dict(central.state_dict())
    worker.zero_grad()
    x = torch.randn(12, 6)
    loss = loss_fn(worker(x), (x[:, 0] > x[:, 1]).long())
    loss.backward()
    torch.nn.utils.clip_grad_value_(worker.parameters(), 0.02)
    for ours, theirs in zip(central.parameters(), worker.parameters()):
        ours.grad = theirs.grad.clone()
    opt.step()
print(f"{loss.item():.4f}")
