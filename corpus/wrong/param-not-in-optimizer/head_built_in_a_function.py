"""A projection built in the training function at each step; loss through it."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
opt = torch.optim.Adam(encoder.parameters(), lr=1e-3)


def classify(z):
    head = nn.Linear(4, 3)  # expect: param-not-in-optimizer
    return head(z)


for _ in range(3):
    for _ in range(5):
        x, y = torch.randn(12, 10), torch.randint(3, (12,))
        loss = nn.functional.cross_entropy(classify(encoder(x)), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
