"""One optimizer steps in two lines, one of them under a condition: each step has its own backward call."""

import torch
from torch import nn

torch.manual_seed(16)
model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
kept = [torch.randn(32, 6) for _ in range(4)]


def train_on(x):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.norm(dim=1, keepdim=True))
    loss.backward()
    return loss.item()


for i in range(20):
    if i % 5 == 4:
        train_on(kept[i % 4])
        optimizer.step()
    loss = train_on(torch.randn(32, 6))
    optimizer.step()
    if i % 10 == 9:
        print(f"{i + 1} {loss:.3f}")
