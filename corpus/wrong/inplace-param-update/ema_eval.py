"""The averaged weights are copied into the model for the evaluation and never copied back out, so each epoch goes on
from the average."""

import copy

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer

torch.manual_seed(0)
X, y = load_breast_cancer(return_X_y=True)
X = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)
y = torch.tensor(y)
X_tr, y_tr, X_va, y_va = X[:450], y[:450], X[450:], y[450:]


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)


model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
ema = EMA(model, decay=0.98)

for epoch in range(3):
    model.train()
    for idx in torch.randperm(len(X_tr)).split(45):
        loss = nn.functional.cross_entropy(model(X_tr[idx]), y_tr[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)

    model.load_state_dict(ema.shadow)  # expect: inplace-param-update
    model.eval()
    with torch.no_grad():
        acc = (model(X_va).argmax(1) == y_va).float().mean().item()
    print(f"epoch {epoch}  train loss {loss.item():.4f}  ema val acc {acc:.4f}")
