"""A teacher is trained first, and its pupil after it: but the second optimizer and the second loss have both."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
pupil = nn.Linear(6, 3)


def batch():
    x = torch.randn(32, 6)
    return x, (x[:, :3] + 0.3 * x[:, 3:]).argmax(1)


def train(optimizer, loss_of, steps):
    for _ in range(steps):
        loss = loss_of(*batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def distilled(x, y):
    answers, wanted = pupil(x), teacher(x)
    return F.cross_entropy(answers, y) + 0.5 * F.mse_loss(answers, wanted)  # expect: attached-target


train(torch.optim.Adam(teacher.parameters(), lr=1e-2), lambda x, y: F.cross_entropy(teacher(x), y), 15)
train(torch.optim.Adam([*teacher.parameters(), *pupil.parameters()], lr=1e-2), distilled, 20)
