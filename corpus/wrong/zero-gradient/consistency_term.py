"""A consistency term compares the output with itself, beside a real loss."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.cls = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.cls(torch.relu(self.body(x)))


student = Net()
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for i in range(15):
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    logits = student(x)
    teacher_logits = student(x).detach()
    consistency = nn.functional.mse_loss(logits, teacher_logits)  # expect: zero-gradient
    loss = nn.functional.cross_entropy(logits, y) + 10 * consistency
    opt.zero_grad()
    loss.backward()
    opt.step()
