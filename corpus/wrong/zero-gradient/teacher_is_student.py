"""The teacher is the student: the divergence from it is always zero."""

import torch
from torch import nn

torch.manual_seed(0)
teacher = nn.Linear(6, 3)
student = teacher
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for i in range(15):
    x = torch.randn(32, 6)
    with torch.no_grad():
        p = teacher(x).softmax(1)
    loss = nn.functional.kl_div(student(x).log_softmax(1), p, reduction="batchmean")  # expect: zero-gradient
    opt.zero_grad()
    loss.backward()
    opt.step()
