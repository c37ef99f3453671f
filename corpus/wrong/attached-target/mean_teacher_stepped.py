"""The consistency loss also trains the teacher, which the average then overwrites: the teacher is pulled two ways."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)


class MeanTeacher(nn.Module):
    def __init__(self, student, decay=0.98):
        super().__init__()
        self.student, self.teacher, self.decay = student, copy.deepcopy(student), decay

    def follow(self):
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters()):
            slow.data.mul_(self.decay).add_(fast.data, alpha=1 - self.decay)

    def consistency(self, x):
        noisy, again = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
        return F.mse_loss(
            self.student(noisy).softmax(1), self.teacher(again).softmax(1)
        )  # expect: attached-target


centers = 2 * torch.randn(4, 10)
labels = torch.randint(4, (400,))
data = centers[labels] + torch.randn(400, 10)
model = MeanTeacher(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for start in range(0, 400, 40):
        x, y = data[start : start + 40], labels[start : start + 40]
        loss = F.cross_entropy(model.student(x[:10]), y[:10]) + 2 * model.consistency(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.follow()
    print(f"epoch {epoch + 1}, loss {loss.item():.4f}")
