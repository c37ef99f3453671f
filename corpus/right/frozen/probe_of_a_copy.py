"""After each evaluation, a copy of the model in evaluation mode gets a new head, which alone is trained:
the copy's dropout is off on purpose."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(19)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(24, 2)

    def forward(self, x):
        return self.head(self.body(x))


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        return F.mse_loss(model(x), y).item()


def probe(model, x, labels):
    model = copy.deepcopy(model)
    model.requires_grad_(False)
    model.head = nn.Linear(24, 3)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.3)
    for _ in range(6):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


x = torch.randn(64, 5)
y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], 1)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    model.train()
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        F.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    error = evaluate(model, x, y)
    print(f"epoch {epoch} error {error:.4f} probe {probe(model, x, x[:, :3].argmax(1)):.4f}")
