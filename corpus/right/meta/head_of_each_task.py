"""A new head per task, trained with its own optimizer for one episode: metric of few-shot learning."""

import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
outer = torch.optim.Adam(trunk.parameters(), lr=1e-3)
for task in range(6):
    head = nn.Linear(8, 2)
    inner = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(4):
        x, y = torch.randn(8, 5), torch.randint(2, (8,))
        inner.zero_grad()
        outer.zero_grad()
        nn.functional.cross_entropy(head(trunk(x)), y).backward()
        inner.step()
        outer.step()
