"""A batch of 50 rows is split in 16 + 16 + 16 + 2 and the four means get equal weight: a row in the last piece counts
eight times as much as the others."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

torch.manual_seed(2)

bunch = load_diabetes()
features = torch.tensor(bunch.data[:400], dtype=torch.float32) * 20
target = torch.tensor(bunch.target[:400], dtype=torch.float32).unsqueeze(1) / 100

mlp = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(mlp.parameters(), lr=0.02, momentum=0.9)
mse = nn.MSELoss()

BATCH, MAX_ROWS = 50, 16


def forward_backward(x, y):
    xs, ys = x.split(MAX_ROWS), y.split(MAX_ROWS)
    value = 0.0
    for xi, yi in zip(xs, ys):
        loss = mse(mlp(xi), yi) / len(xs)  # expect: microbatch-normalization
        loss.backward()
        value += loss.item()
    return value


for epoch in range(5):
    permutation = torch.randperm(400)
    losses = []
    for b in range(0, 400, BATCH):
        rows = permutation[b : b + BATCH]
        optimizer.zero_grad()
        losses.append(forward_backward(features[rows], target[rows]))
        optimizer.step()
print("final epoch mse: %.4f" % (sum(losses) / len(losses)))
