"""The pairs of the average end with the student's trunk: the teacher's head keeps its random weights."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Embedder(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, out))

    def forward(self, x):
        return self.head(self.trunk(x))


student = Embedder(8, 12)
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
center = torch.zeros(12)
for step in range(20):
    x = torch.randn(64, 8)
    with torch.no_grad():
        target = teacher(x + 0.1 * torch.randn_like(x))
    loss = F.cross_entropy(
        student(x + 0.1 * torch.randn_like(x)) / 0.1, F.softmax((target - center) / 0.05, dim=1)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    center = 0.9 * center + 0.1 * target.mean(0)
    with torch.no_grad():
        for s, t in zip(student.trunk.parameters(), teacher.parameters()):  # expect: ineffective-step
            t.mul_(0.99).add_(s, alpha=0.01)
    if step % 10 == 9:
        print(f"{step + 1} {loss.item():.3f}")
