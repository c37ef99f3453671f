"""The inner steps train a deep copy of the model, and its gradients never come back: the outer optimizer steps
without any."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
outer = torch.optim.Adam(model.parameters(), lr=1e-3)
for it in range(6):
    outer.zero_grad()
    for _ in range(3):
        phase = torch.rand(1) * 3
        learner = copy.deepcopy(model)  # expect: broken-graph
        inner = torch.optim.SGD(learner.parameters(), lr=0.01)
        x = torch.rand(10, 1) * 10 - 5
        for _ in range(2):
            inner.zero_grad()
            F.mse_loss(learner(x), torch.sin(x + phase)).backward()
            inner.step()
        inner.zero_grad()
        x = torch.rand(10, 1) * 10 - 5
        loss = F.mse_loss(learner(x), torch.sin(x + phase)) / 3
        loss.backward()
    outer.step()
print(loss.item())
