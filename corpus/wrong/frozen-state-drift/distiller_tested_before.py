"""A distiller freezes its teacher, whose batch norms are still in training mode: a test before, which puts the teacher
back into the mode that it had, does not change that."""

import torch
import torch.nn.functional as F
from torch import nn


def error(net, x, y):
    mode = net.training
    net.eval()
    with torch.no_grad():
        wrong = F.mse_loss(net(x), y).item()
    if mode:
        net.train()
    return wrong


class Distiller:
    def __init__(self, teacher, student):
        self.teacher, self.student = teacher, student
        self.teacher.requires_grad_(False)  # expect: frozen-state-drift
        self.opt = torch.optim.SGD(student.parameters(), lr=0.05)

    def step(self, x):
        with torch.no_grad():
            target = self.teacher(x)
        loss = F.mse_loss(self.student(x), target)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


torch.manual_seed(0)
x = torch.randn(96, 6)
y = torch.sin(x[:, :2])
teacher = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(teacher.parameters(), lr=0.05)
for batch, target in zip(x.split(16), y.split(16)):
    loss = F.mse_loss(teacher(batch), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"teacher {error(teacher, x, y):.3f}")

distiller = Distiller(teacher, nn.Linear(6, 2))
for epoch in range(2):
    for batch in (x + 0.5).split(16):
        distiller.step(batch)
    print(f"student {error(distiller.student, x, y):.3f}")
