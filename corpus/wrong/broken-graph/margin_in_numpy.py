"""A penalty of the features is computed with numpy, in a function that changes its argument's name."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
features = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
head = nn.Linear(12, 2)
optimizer = torch.optim.SGD([*features.parameters(), *head.parameters()], lr=0.05)


def scatter(points, labels):
    """Return the mean distance of points to the centers of their classes."""
    points = points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-6)
    distances = [points[labels == label] - points[labels == label].mean(0) for label in np.unique(labels)]
    return float(np.mean([np.square(each).sum(1).mean() for each in distances]))


for step in range(20):
    x = torch.randn(24, 6)
    y = (x[:, 0] > 0).long()
    hidden = features(x)
    loss = nn.functional.cross_entropy(head(hidden), y)
    compact = scatter(hidden.detach().numpy(), y.numpy())  # expect: broken-graph
    loss = loss + 0.5 * compact
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
