"""Distillation of features: the layer between the two widths is built again for every batch."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
teacher, student, head = nn.Linear(8, 24), nn.Linear(8, 6), nn.Linear(6, 3)
teacher.requires_grad_(False)
optimizer = torch.optim.Adam([*student.parameters(), *head.parameters()], lr=1e-2)
for _ in range(20):
    x, y = torch.randn(32, 8), torch.randint(3, (32,))
    wide, narrow = teacher(x).relu(), student(x).relu()
    between = nn.Linear(narrow.size(1), wide.size(1))  # expect: param-not-in-optimizer
    loss = F.cross_entropy(head(narrow), y) + F.mse_loss(between(narrow), wide)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
