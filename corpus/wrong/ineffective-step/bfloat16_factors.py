"""Factors of a rating matrix in bfloat16. Every factor moves now and then, but far less than the updates ask for."""

import torch
from torch import nn

torch.manual_seed(6)
users, items = torch.randint(30, (1200,)), torch.randint(20, (1200,))
ratings = (torch.randn(30, 4) @ torch.randn(4, 20))[users, items] / 2
factors = nn.ModuleDict({"user": nn.Embedding(30, 12), "item": nn.Embedding(20, 12)}).to(torch.bfloat16)
optimizer = torch.optim.SGD(factors.parameters(), lr=3e-3, momentum=0.5)  # expect: ineffective-step
for epoch in range(5):
    total = 0.0
    for part in torch.randperm(1200).split(100):
        score = (factors["user"](users[part]) * factors["item"](items[part])).sum(1)
        loss = nn.functional.mse_loss(score.float(), ratings[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 12:.4f}")
