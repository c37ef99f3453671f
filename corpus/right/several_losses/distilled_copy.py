"""Distillation at temperature 4 into a copy of the teacher, which sees noisy inputs."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
import copy

student = copy.deepcopy(teacher)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for i in range(15):
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    with torch.no_grad():
        target = (teacher(x) / 4).softmax(1)
    out = student(x)
    loss = F.cross_entropy(student(x + 0.1 * torch.randn_like(x)), y) + 16 * F.kl_div(
        (student(x + 0.1 * torch.randn_like(x)) / 4).log_softmax(1), target, reduction="batchmean"
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
