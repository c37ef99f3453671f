"""mul and add_ give a new tensor that nobody keeps: the averaged model that is evaluated never leaves its start."""

from copy import deepcopy

import torch
from sklearn.datasets import load_wine
from torch import nn

torch.manual_seed(0)
X, y = load_wine(return_X_y=True)
X = torch.tensor(X, dtype=torch.float32)
X = (X - X.mean(0)) / X.std(0)
y = torch.tensor(y)

model = nn.Sequential(nn.Linear(13, 16), nn.Tanh(), nn.Linear(16, 3))
ema = deepcopy(model).requires_grad_(False)
opt = torch.optim.SGD(model.parameters(), lr=0.2)

for epoch in range(2):
    for batch in torch.randperm(len(X)).split(30):
        opt.zero_grad()
        nn.functional.cross_entropy(model(X[batch]), y[batch]).backward()
        opt.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.mul(0.9).add(p, alpha=0.1)  # expect: ineffective-step
    acc = (ema(X).argmax(1) == y).float().mean()
    print(f"epoch {epoch}: accuracy of the average {acc:.3f}")
