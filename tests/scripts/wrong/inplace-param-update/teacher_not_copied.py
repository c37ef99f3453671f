"""The teacher is the student under a second name, so that the average shrinks the student's weights after each step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)


def ema_update(average, model, decay=0.95):
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.mul_(decay).add_(p, alpha=1 - decay)


labels = torch.randn(10, 3)
labelled, unlabelled = torch.randn(48, 10), torch.randn(256, 10)
student = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
teacher = student  # expect: inplace-param-update
opt = torch.optim.Adam(student.parameters(), lr=5e-3)
for it in range(10):
    batch = unlabelled[torch.randint(0, 256, (64,))]
    with torch.no_grad():
        target = teacher(batch + 0.1 * torch.randn_like(batch)).softmax(1)
    out = student(batch + 0.1 * torch.randn_like(batch)).softmax(1)
    loss = F.cross_entropy(student(labelled), (labelled @ labels).argmax(1)) + F.mse_loss(out, target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema_update(teacher, student)
print(loss.item())
