"""Two networks teach each other: each is trained by the labels, and also through the other's soft labels."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
first = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
second = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-3)
for step in range(10):
    x = torch.randn(32, 10)
    y = x[:, :4].argmax(1)
    a, b = first(x), second(x)
    together = F.kl_div(F.log_softmax(a, 1), F.softmax(b, 1), reduction="batchmean")
    together = together + F.kl_div(F.log_softmax(b, 1), F.softmax(a, 1), reduction="batchmean")
    loss = F.cross_entropy(a, y) + F.cross_entropy(b, y) + 0.5 * together
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
