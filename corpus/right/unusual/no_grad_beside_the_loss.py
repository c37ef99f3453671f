"""Blocks under ``no_grad`` read what carries a graph: a baseline, a weight, a target, a metric, an evaluation.

Each of them is a number that the loss is told, or only shown; every parameter has another way to the loss.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)

encoder = nn.Linear(6, 12)
head = nn.Linear(12, 3)
judge = nn.Linear(12, 1)
measure = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters(), *judge.parameters()], lr=1e-2)

x, y = torch.randn(96, 6), torch.randint(3, (96,))
held_out, labels = torch.randn(32, 6), torch.randint(3, (32,))

for epoch in range(3):
    for some in torch.randperm(96).split(24):
        code = torch.tanh(encoder(x[some]))
        logits = head(code)
        with torch.no_grad():
            hard = measure(logits, y[some])
            weight = torch.sigmoid(judge(code)).squeeze(1)
            centre = F.normalize(code, dim=1).mean(0)
        losses = F.cross_entropy(logits, y[some], reduction="none")
        value = judge(code).squeeze(1)
        loss = (
            (weight * losses).mean()
            + F.mse_loss(value, losses.detach())
            + 0.1 * (code - centre).square().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (head(torch.tanh(encoder(held_out))).argmax(1) == labels).float().mean()
    print(f"epoch {epoch}: loss {loss.item():.3f} hard {hard.item():.3f} accuracy {accuracy.item():.2f}")
