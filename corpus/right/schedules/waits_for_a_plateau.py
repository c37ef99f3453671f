"""Looks like schedules that are never advanced: one waits for an epoch that doesn't improve, one for an update that
isn't skipped, one for a later epoch, and one for an option. This run ends before that."""

import torch
from torch import nn

torch.manual_seed(2)
OPTION = False
x = torch.randn(96, 4)
y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0])


def fit(name):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    best = float("inf")
    rested = False
    for epoch in range(4):
        improved = False
        stepped = False
        total = 0.0
        for xs, ys in zip(x.split(16), y.split(16), strict=True):
            loss = nn.functional.mse_loss(model(xs).squeeze(1), ys)
            opt.zero_grad()
            loss.backward()
            if loss.item() < 1e-3:
                rested = True
            opt.step()
            stepped = True
            total += loss.item()
        if total < best:
            best = total
            improved = True
        if name == "plateau" and not improved:
            sched.step()
        if name == "converged" and rested:
            sched.step()
        if name == "late" and stepped and epoch > 9:
            sched.step()
        if OPTION and stepped:
            sched.step()
    print(name, round(total, 4))


for name in ("plateau", "converged", "late", "option"):
    fit(name)
