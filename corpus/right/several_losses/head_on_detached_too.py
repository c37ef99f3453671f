"""The head learns from detached features of a second batch as well as with the encoder: both losses are its own."""

import torch
from torch import nn
from torch.nn import functional as F


class Trainer:
    def __init__(self, rate):
        self.encoder = nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 8))
        self.head = nn.Linear(8, 2)
        self.slow = torch.optim.AdamW(self.encoder.parameters(), lr=rate / 10)
        self.fast = torch.optim.AdamW(self.head.parameters(), lr=rate)

    def step(self, x, y, more_x, more_y):
        self.slow.zero_grad()
        self.fast.zero_grad()
        extra = F.binary_cross_entropy_with_logits(self.head(self.encoder(more_x).detach()), more_y)
        extra.backward()
        loss = F.binary_cross_entropy_with_logits(self.head(self.encoder(x)), y)
        loss.backward()
        self.slow.step()
        self.fast.step()
        return loss.item()


torch.manual_seed(7)
trainer, plane = Trainer(1e-2), torch.randn(10, 2)
for step in range(20):
    x, more = torch.randn(16, 10), torch.randn(64, 10)
    loss = trainer.step(x, (x @ plane > 0).float(), more, (more @ plane > 0).float())
    if step % 10 == 9:
        print(f"step {step + 1}: {loss:.3f}")
