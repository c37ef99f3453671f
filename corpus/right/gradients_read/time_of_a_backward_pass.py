"""Looks like an optimizer that is never stepped: the script measures one pass, and stops there without ``train``."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(64, 16), torch.randint(4, (64,))
for name in ("cold", "warm"):
    start = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    assert time.perf_counter() > start, name
for _ in range(50 if "train" in sys.argv else 0):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
