"""The distillation compares the student with the teacher, which was trained before."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
student = nn.Linear(6, 3)
x = torch.randn(240, 6)
y = x[:, :3].argmax(1)
adam = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for _ in range(10):
    adam.zero_grad()
    F.cross_entropy(teacher(x), y).backward()
    adam.step()

sgd = torch.optim.SGD(student.parameters(), lr=0.1)
for batch in torch.randperm(240).split(20):
    logits = student(x[batch])
    with torch.no_grad():
        expert = teacher(x[batch])
    soft = (expert / 2).softmax(1)
    guess = (logits / 2).log_softmax(1)
    distilled = F.kl_div(guess, soft, reduction="batchmean")
    loss = F.cross_entropy(logits, y[batch]) + 4 * distilled
    sgd.zero_grad()
    loss.backward()
    sgd.step()
