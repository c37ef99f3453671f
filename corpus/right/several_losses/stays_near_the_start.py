"""L2-SP and a mean teacher: both terms are exactly zero at the first step, and not later."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
teacher = copy.deepcopy(student).requires_grad_(False)
start = [p.detach().clone() for p in student.parameters()]
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(15):
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    logits = student(x)
    with torch.no_grad():
        target = teacher(x)
    near = sum((p - p0).pow(2).sum() for p, p0 in zip(student.parameters(), start))
    loss = nn.functional.cross_entropy(logits, y) + nn.functional.mse_loss(logits, target) + 0.01 * near
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, p in zip(teacher.parameters(), student.parameters()):
            mean.lerp_(p, 0.05)
