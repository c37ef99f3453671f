"""Batches of empty documents are left out before they are counted, so each window has as many as its divisor."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
EVERY, USED = 3, 48
documents = [torch.randn(6, 10) * (torch.rand(1) > 0.3) for _ in range(90)]
rates = torch.randn(10)
scorer = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
sgd = torch.optim.SGD(scorer.parameters(), lr=0.05)
used = 0
for number, words in enumerate(documents, start=1):
    if not words.any():
        print(f"document {number} is empty")
        continue
    used += 1
    loss = F.mse_loss(scorer(words).squeeze(1), words @ rates)
    (loss / EVERY).backward()
    if used % EVERY == 0:
        sgd.step()
        sgd.zero_grad()
    if used == USED:
        break
print(f"loss {loss.item():.3f}")
