"""Teacher and student are parts of one model, and the optimizer holds both: nothing but the student trains the teacher."""

import torch
import torch.nn.functional as F
from torch import nn


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 4))
        self.student = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.student(x), self.teacher(x)


torch.manual_seed(31)
model = Distiller()
kl = nn.KLDivLoss(reduction="batchmean")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(8):
    x = torch.randn(32, 10)
    s, t = model(x)
    loss = kl(F.log_softmax(s, -1), F.softmax(t, -1))  # expect: attached-target
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
