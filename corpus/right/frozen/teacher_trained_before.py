"""A teacher is trained first; then it teaches in evaluation mode, and nothing of it moves any more."""

import torch
import torch.nn.functional as F
from torch import nn


def network(width):
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def batches(n):
    for _ in range(n):
        x = torch.randn(32, 6)
        yield x, x[:, :3].argmax(1)


def fit(net, steps):
    net.train()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(steps):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()


def distill(student, teacher, steps):
    student.train()
    teacher.eval()
    opt = torch.optim.Adam(student.parameters(), lr=1e-2)
    for x, y in batches(steps):
        out = student(x)
        with torch.no_grad():
            target = F.softmax(teacher(x) / 2, 1)
        loss = F.cross_entropy(out, y) + F.kl_div(F.log_softmax(out / 2, 1), target, reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


torch.manual_seed(0)
big, small = network(32), network(8)
fit(big, 12)
print(f"loss {distill(small, big, 16):.3f}")
