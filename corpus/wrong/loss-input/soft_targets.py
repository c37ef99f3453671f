"""Student and teacher are compared by a divergence that takes log_softmax of the student's probabilities."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(120, 10)
teacher = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
student = nn.Linear(10, 5)
optimizer = torch.optim.SGD(student.parameters(), lr=0.5)

for step in range(10):
    with torch.no_grad():
        soft = F.softmax(teacher(x) / 2.0, dim=1)
    optimizer.zero_grad()
    loss = F.kl_div(
        F.log_softmax(torch.softmax(student(x), dim=1), dim=1), soft, reduction="batchmean"
    )  # expect: loss-input
    loss.backward()
    optimizer.step()
print(loss.item())
