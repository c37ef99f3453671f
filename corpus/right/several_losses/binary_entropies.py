"""Targets of a binary cross entropy with gradient, on purpose: the entropy of each output, two views that learn from
each other, and labels that are parameters themselves."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 4))
first, second = nn.Linear(4, 4), nn.Linear(4, 4)
x = torch.randn(64, 8)
soft = nn.Parameter((x[:, :4] > 0).float() * 4 - 2)
optimizer = torch.optim.Adam([*net.parameters(), *first.parameters(), *second.parameters()], lr=3e-3)
labels = torch.optim.SGD([soft], lr=0.5)
bce = F.binary_cross_entropy_with_logits
for step in range(12):
    logits = net(x)
    fit = bce(logits, soft.sigmoid())
    entropy = bce(logits, logits.sigmoid())
    a, b = first(logits), second(logits)
    mutual = bce(a, b.sigmoid()) + bce(b, a.sigmoid())
    again = net(x)
    views = F.binary_cross_entropy(again.sigmoid(), logits.sigmoid())
    loss = fit + 0.1 * entropy + 0.2 * mutual + 0.1 * views
    optimizer.zero_grad()
    labels.zero_grad()
    loss.backward()
    optimizer.step()
    labels.step()
    if step % 4 == 3:
        print(f"{step + 1} {loss.item():.4f}")
