"""Looks like schedules that are advanced too early: one is told the epoch, one counts updates from 1, one waits for
the head's optimizer, which joins later, and one has no drop within this run."""

import warnings

import torch
from torch import nn
from torch.optim import lr_scheduler

warnings.simplefilter("ignore")
torch.manual_seed(0)
EPOCHS, WARM = 6, 8
x = torch.randn(60, 5)
y = (x[:, 0] > 0).long()


def network():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def update(net, *optimizers):
    for rows in torch.randperm(60).split(20):
        for each in optimizers:
            each.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        for each in optimizers:
            each.step()


told, noam, plain = network(), network(), network()
told_opt = torch.optim.SGD(told.parameters(), lr=0.1)
told_sched = lr_scheduler.StepLR(told_opt, 2, 0.3)
noam_opt = torch.optim.Adam(noam.parameters(), lr=0.02)
noam_sched = lr_scheduler.LambdaLR(
    noam_opt, lambda n: min(max(n, 1) ** -0.5, max(n, 1) * WARM**-1.5) * WARM**0.5
)
plain_opt = torch.optim.SGD(plain.parameters(), lr=0.1)
plain_sched = lr_scheduler.MultiStepLR(plain_opt, [30, 60])
for epoch in range(EPOCHS):
    told_sched.step(epoch)
    update(told, told_opt)
    noam_sched.step()
    update(noam, noam_opt)
    plain_sched.step()
    update(plain, plain_opt)

body, head = network(), nn.Linear(2, 2)
body_opt = torch.optim.SGD(body.parameters(), lr=0.1)
head_opt = torch.optim.SGD(head.parameters(), lr=0.1)
body_sched, head_sched = (lr_scheduler.StepLR(each, 2, 0.5) for each in (body_opt, head_opt))
for epoch in range(EPOCHS):
    update(nn.Sequential(body, head), body_opt, *([head_opt] if epoch else []))
    body_sched.step()
    head_sched.step()
