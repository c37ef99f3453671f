"""Digits: nobody calls eval(), so the validation after each epoch runs batch norm in training mode."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = load_digits()
x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
y = torch.tensor(data.target)
train_loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=64, shuffle=True)
val_loader = DataLoader(TensorDataset(x[512:704], y[512:704]), batch_size=64)

net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(32, 10),
)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

for epoch in range(3):
    for images, labels in train_loader:
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    correct = 0
    with torch.no_grad():  # expect: train-eval-mode
        for images, labels in val_loader:
            correct += (net(images).argmax(1) == labels).sum().item()
    print(f"epoch {epoch} accuracy {correct / 192:.3f}")
