"""The weights are overwritten with saved ones at the end: the best epoch's state is restored after the training stopped
early."""

import copy

import torch
import torch.nn as nn


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, float("inf"), 0, None

    def update(self, value, model):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def evaluate(model, x, y):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        value = nn.functional.mse_loss(model(x), y).item()
    model.train(was_training)
    return value


torch.manual_seed(0)
x = torch.randn(90, 12)
y = x[:, :1] + 0.8 * torch.randn(90, 1)
xt, yt, xv, yv = x[:50], y[:50], x[50:], y[50:]
model = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.02)
stopper = EarlyStopping(patience=3)
for epoch in range(20):
    for idx in torch.randperm(50).split(10):
        loss = nn.functional.mse_loss(model(xt[idx]), yt[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if stopper.update(evaluate(model, xv, yv), model):
        break
model.load_state_dict(stopper.state)
print(f"stopped after epoch {epoch}, best {stopper.best:.4f}, restored {evaluate(model, xv, yv):.4f}")
