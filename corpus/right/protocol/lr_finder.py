"""The rate rises exponentially per batch in a first short run, after which model and optimizer are put back to where they
were."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(400, 6)
y = (x[:, :1] * x[:, 1:2]).tanh()
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def range_test(low=1e-3, high=1.0, steps=20):
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    best, best_lr = float("inf"), low
    for k in range(steps):
        lr = low * (high / low) ** (k / (steps - 1))
        for g in optimizer.param_groups:
            g["lr"] = lr
        idx = torch.randint(0, 400, (40,))
        loss = F.mse_loss(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best, best_lr = loss.item(), lr
        if loss.item() > 4 * best:
            break
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    return best_lr / 3


lr = range_test()
for g in optimizer.param_groups:
    g["lr"] = lr
for epoch in range(3):
    for idx in torch.randperm(400).split(40):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[idx]), y[idx])
        loss.backward()
        optimizer.step()
print(f"lr {lr:.4f} loss {loss.item():.4f}")
