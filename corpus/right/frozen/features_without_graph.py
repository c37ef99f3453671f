"""First a probe is trained on features under ``no_grad``, by an optimizer that holds the backbone as well; then all.

A frozen teacher is part of the loss, under ``no_grad``, too.
"""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_iris
from torch import nn

torch.manual_seed(3)
data = load_iris()
x = torch.tensor(data.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor(data.target)

backbone = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
probe = nn.Linear(16, 3)
teacher = copy.deepcopy(backbone).requires_grad_(False)
optimizer = torch.optim.SGD([*backbone.parameters(), *probe.parameters()], lr=0.1)

for epoch in range(4):
    for some in torch.randperm(150).split(50):
        if epoch < 2:
            with torch.no_grad():
                features = backbone(x[some])
        else:
            features = backbone(x[some])
        with torch.no_grad():
            kept = teacher(x[some])
        loss = F.cross_entropy(probe(features), y[some]) + 0.1 * F.mse_loss(features, kept)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}")
