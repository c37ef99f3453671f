"""Batches of empty documents are left out, and with them the steps that are due at these batches."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
EVERY = 3
documents = [torch.randn(6, 10) * (torch.rand(6, 1) > 0.2) * (torch.rand(1) > 0.3) for _ in range(90)]
rates = torch.randn(10)
scorer = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
sgd = torch.optim.SGD(scorer.parameters(), lr=0.05)
for number, words in enumerate(documents, start=1):
    if words.abs().sum() > 0:
        loss = F.mse_loss(scorer(words).squeeze(1), words @ rates) / EVERY
        loss.backward()
        if number % EVERY == 0:  # expect: accumulation-window
            sgd.step()
            sgd.zero_grad()
sgd.step()
print(f"loss {loss.item():.3f}")
