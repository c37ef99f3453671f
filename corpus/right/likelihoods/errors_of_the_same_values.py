"""Two networks are pulled together by several errors of the same two values: absolute and squared, of each half with
a weight of its own, of the mean, and in both directions."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
left, right = (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2))
optimizer = torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.05)
data = torch.randn(64, 6)
labels = data[:, :2].tanh()


def agreement(a, b, how):
    difference = a - b
    return {
        "norms": F.mse_loss(a, b) + 0.1 * F.l1_loss(a, b),
        "halves": difference[0].pow(2).mean() + 0.5 * difference[1].pow(2).mean(),
        "mean": difference.pow(2).mean() + 0.3 * difference.mean(0).pow(2).mean(),
        "both": 0.5 * (F.mse_loss(a, b) + F.mse_loss(b, a)),
    }[how]


for how in ("norms", "halves", "mean", "both"):
    for x, y in zip(data.split(16), labels.split(16)):
        a, b = left(x), right(x)
        loss = F.mse_loss(a, y) + 2 * F.mse_loss(b, y) + 0.1 * agreement(a, b, how)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(how, f"{loss.item():.4f}")
