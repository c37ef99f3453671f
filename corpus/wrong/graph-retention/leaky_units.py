"""Leaky units keep their potential in an attribute, with its graph, and retain_graph=True silences the error: each backward
pass goes through all earlier batches."""

import torch
from torch import nn

torch.manual_seed(0)


class Leaky(nn.Module):
    def __init__(self, rows=16, units=12):
        super().__init__()
        self.drive = nn.Linear(5, units)
        self.out = nn.Linear(units, 1)
        self.potential = torch.zeros(rows, units)

    def forward(self, signal):
        outputs = []
        level = self.potential
        for now in signal.unbind(1):
            level = 0.8 * level + torch.tanh(self.drive(now))
            outputs.append(self.out(level))
        self.potential = level  # expect: graph-retention
        return torch.stack(outputs, 1)


model = Leaky()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
signal = torch.randn(16, 60, 5).cumsum(1) / 5
target = signal.mean(-1, keepdim=True).roll(1, 1)
for start in range(0, 60, 5):
    part = slice(start, start + 5)
    loss = nn.functional.mse_loss(model(signal[:, part]), target[:, part])
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
print(f"loss {loss.item():.4f}")
