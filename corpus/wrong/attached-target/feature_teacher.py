"""The pretrained teacher's parameters are in the student's optimizer, and its features carry gradient: the teacher is
trained to be predictable for the student."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(20, hidden), nn.GELU())
        self.head = nn.Linear(hidden, 5)

    def forward(self, x):
        f = self.features(x)
        return f, self.head(f)


def pretrain(model, x, y):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(8):
        loss = F.cross_entropy(model(x)[1], y)
        opt.zero_grad()
        loss.backward()
        opt.step()


def distill(teacher, student, proj, x, y, steps=8):
    parameters = itertools.chain(teacher.parameters(), student.parameters(), proj.parameters())
    opt = torch.optim.AdamW(parameters, lr=3e-3)
    teacher.eval()
    for _ in range(steps):
        part = torch.randint(0, len(x), (32,))
        known, _ = teacher(x[part])
        found, logits = student(x[part])
        loss = F.cross_entropy(logits, y[part]) + 0.5 * F.mse_loss(
            proj(found), known
        )  # expect: attached-target
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


torch.manual_seed(5)
x = torch.randn(128, 20)
y = x[:, :5].argmax(1)
teacher, student = Net(48), Net(16)
pretrain(teacher, x, y)
print(distill(teacher, student, nn.Linear(16, 48), x, y))
