"""The body is put in a group with rate 0 in place of being frozen, so its gradients are computed in each step and come
to nothing."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images[:500] / 16, dtype=torch.float32).unsqueeze(1)
y = torch.tensor(digits.target[:500] % 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(96, 2)

    def forward(self, x):
        return self.head(self.body(x))


model = Net()
optimizer = torch.optim.SGD(
    [
        {"params": model.body.parameters(), "lr": 0.0},  # expect: wasted-gradient
        {"params": model.head.parameters(), "lr": 0.1},
    ],
    momentum=0.9,
)

for epoch in range(2):
    total = 0.0
    for i in range(0, 500, 50):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i : i + 50]), y[i : i + 50])
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 10:.4f}")
