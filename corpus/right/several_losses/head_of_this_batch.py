"""Looks as if the last loss of a loop were left over: each batch is of one task, and the loop finds its head."""

import torch
from torch import nn

torch.manual_seed(1)
trunk = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
heads = nn.ModuleList(nn.Linear(24, 3) for _ in range(3))
opt = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=1e-2)
for step in range(15):
    task, x = step % 3, torch.randn(32, 6)
    y = x[:, [task, 3 + task]].argmax(1)
    features = trunk(x)
    for number, head in enumerate(heads):
        scores = head(features)
        if number == task:
            loss = nn.functional.cross_entropy(scores, y)
            print(f"step {step} task {task} loss {loss.item():.3f}")
    opt.zero_grad()
    loss.backward()
    opt.step()
