"""A mean teacher without its copy: the teacher is the student, and its average writes the student's values back."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
teacher = student  # expect: zero-gradient
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)


@torch.no_grad()
def follow(decay=0.97):
    for mine, theirs in zip(teacher.parameters(), student.parameters()):
        mine.copy_(decay * mine + (1 - decay) * theirs)


for step in range(30):
    x, y, unlabeled = torch.randn(16, 8), torch.randint(3, (16,)), torch.randn(32, 8)
    predicted = F.softmax(student(unlabeled), dim=1)
    with torch.no_grad():
        wanted = F.softmax(teacher(unlabeled), dim=1)
    consistency = F.mse_loss(predicted, wanted)
    loss = F.cross_entropy(student(x), y) + consistency
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    follow()
    if step % 5 == 4:
        student.eval()
        with torch.no_grad():
            print(f"{(student(x).argmax(1) == y).float().mean():.2f}")
        student.train()
