"""Looks like data in the optimizer: the positions of the sensors begin at their measured values, and are refined
together with the source that all of them see."""

import numpy as np
import torch

rng = np.random.default_rng(2)
true = rng.uniform(-1, 1, size=(30, 2))
measured = true + 0.05 * rng.standard_normal((30, 2))
seen = torch.from_numpy(np.linalg.norm(true - np.array([0.4, -0.2]), axis=1))

positions = torch.from_numpy(measured).clone().requires_grad_()
source = torch.zeros(2, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([positions, source], lr=0.02)
prior = torch.from_numpy(measured)
for _ in range(30):
    distance = (positions - source).norm(dim=1)
    loss = (distance - seen).square().mean() + 0.1 * (positions - prior).square().sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}", [round(each, 2) for each in source.tolist()])
