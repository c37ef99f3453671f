"""A teacher follows the student's parameters by lerp_ under no_grad, and a smoothed loss by lerp_ of detached losses."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(22)
data = torch.randn(96, 10)
student = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))
teacher = copy.deepcopy(student)
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
smoothed = torch.zeros(())
for _ in range(2):
    for x in data.split(16):
        with torch.no_grad():
            target = teacher(x).softmax(-1)
        loss = F.cross_entropy(student(x + 0.1 * torch.randn_like(x)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smoothed.lerp_(loss.detach(), 0.1)
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters()):
                slow.lerp_(fast, 0.05)
print(f"{smoothed.item():.3f}")
