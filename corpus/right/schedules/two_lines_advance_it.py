"""Looks like schedules that are advanced twice: one also steps for the last, shorter window, one for the batches that
are skipped, and one counts batches in the warm-up and epochs afterwards."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(1)
ACCUM, EPOCHS = 4, 4
x = torch.randn(90, 4)
x[33] = float("nan")
y = torch.randint(3, (90,))


def setting():
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, opt, LambdaLR(opt, lambda n: (1 + n) ** -0.5)


def loss_of(model, rows):
    return nn.functional.cross_entropy(model(x[rows].nan_to_num()), y[rows])


def windows():
    model, opt, sched = setting()
    for _ in range(EPOCHS):
        parts = torch.randperm(90).split(9)
        for i, rows in enumerate(parts):
            size = min(ACCUM, len(parts) - i // ACCUM * ACCUM)
            (loss_of(model, rows) / size).backward()
            if (i + 1) % ACCUM == 0:
                opt.step()
                opt.zero_grad()
                sched.step()
        if len(parts) % ACCUM:
            opt.step()
            opt.zero_grad()
            sched.step()


def skipped():
    model, opt, sched = setting()
    for _ in range(EPOCHS):
        for rows in torch.randperm(90).split(9):
            if x[rows].isnan().any():
                sched.step()
                continue
            opt.zero_grad()
            loss_of(model, rows).backward()
            opt.step()
            sched.step()


def warm_then_epochs(warm=1):
    model, opt, sched = setting()
    for epoch in range(EPOCHS):
        for rows in torch.randperm(90).split(18):
            opt.zero_grad()
            loss_of(model, rows).backward()
            opt.step()
            if epoch < warm:
                sched.step()
        if epoch >= warm:
            sched.step()


windows()
skipped()
warm_then_epochs()
