"""The optimizer also holds the teacher, and its soft labels carry gradient: it learns from the student."""

import torch
import torch.nn.functional as F
from torch import nn


def mlp(width):
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 4))


torch.manual_seed(7)
teacher, student = mlp(64), mlp(16)
T = 3.0
pre = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for _ in range(10):
    x = torch.randn(32, 10)
    pre.zero_grad()
    F.cross_entropy(teacher(x), x[:, :4].argmax(1)).backward()
    pre.step()
models = nn.ModuleDict({"teacher": teacher, "student": student})
optimizer = torch.optim.Adam(models.parameters(), lr=1e-3)
for it in range(10):
    x = torch.randn(32, 10)
    y = x[:, :4].argmax(1)
    soft = F.softmax(models["teacher"](x) / T, dim=1)
    logits = models["student"](x)
    kd = (
        F.kl_div(F.log_softmax(logits / T, dim=1), soft, reduction="batchmean") * T * T
    )  # expect: attached-target
    loss = F.cross_entropy(logits, y) + kd
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
