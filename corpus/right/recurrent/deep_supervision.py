"""Each stage of a network has a loss of its own; the graph grows, but with other parameters at each stage."""

import torch
from torch import nn

torch.manual_seed(0)
stages = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(5))
exits = nn.ModuleList(nn.Linear(6, 3) for _ in stages)
optimizer = torch.optim.SGD([*stages.parameters(), *exits.parameters()], lr=0.1)
for step in range(10):
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    optimizer.zero_grad()
    for stage, head in zip(stages, exits):
        x = stage(x)
        nn.functional.cross_entropy(head(x), y).backward(retain_graph=True)
    optimizer.step()
print(x.norm().item())
