"""A copy of the model is trained with an optimizer made anew for each task, and the outer weights are written by hand
towards the copy's."""

import copy
import random

import torch
import torch.nn as nn

random.seed(3)
torch.manual_seed(3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 24), nn.Linear(24, 2)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def task():
    angle = random.uniform(-0.5, 0.5)
    direction = torch.tensor([1.0, angle])
    x = torch.randn(40, 2)
    return x, (x @ direction > 0).long()


def inner_train(net, x, y, steps=5):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


meta = Net()
for epoch in range(2):
    for k in range(10):
        learner = copy.deepcopy(meta)
        loss = inner_train(learner, *task())
        step = 0.3 * (1 - (10 * epoch + k) / 20)
        with torch.no_grad():
            for p, q in zip(meta.parameters(), learner.parameters()):
                p.lerp_(q, step)
    print(f"epoch {epoch} inner loss {loss:.4f}")
