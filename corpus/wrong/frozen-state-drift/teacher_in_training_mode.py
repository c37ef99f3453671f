"""A pretrained teacher runs under no_grad, in training mode."""

import torch
from torch import nn
import torch.nn.functional as F


def net(w):
    return nn.Sequential(nn.Linear(6, w), nn.BatchNorm1d(w), nn.ReLU(), nn.Linear(w, 3))


torch.manual_seed(0)
teacher, student = net(32), net(8)
teacher.load_state_dict(net(32).state_dict())
opt = torch.optim.Adam(student.parameters(), 1e-3)
for i in range(15):
    x = torch.randn(16, 6)
    with torch.no_grad():  # expect: frozen-state-drift
        t = teacher(x)
    loss = F.kl_div(F.log_softmax(student(x), 1), F.softmax(t, 1), reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
