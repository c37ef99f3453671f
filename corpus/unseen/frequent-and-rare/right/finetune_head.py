"""Transfer to a new task. The whole model goes to the optimizer and the backbone gets a smaller
learning rate; the head is replaced before that."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(21)


class ConvNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x):
        return self.fc(self.features(x))


def batches(x, y, size, steps):
    for _ in range(steps):
        idx = torch.randint(0, len(x), (size,))
        yield x[idx], y[idx]


data = load_digits()
images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(data.target)

# stage 1: all ten digits
model = ConvNet(10)
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for xb, yb in batches(images, labels, 64, 25):
    opt.zero_grad()
    F.cross_entropy(model(xb), yb).backward()
    opt.step()

# stage 2: even / odd / zero
coarse = torch.where(labels == 0, torch.full_like(labels, 2), labels % 2)
model.fc = nn.Linear(16, 3)
optimizer = torch.optim.Adam([
    {"params": model.features.parameters(), "lr": 1e-3},
    {"params": model.fc.parameters(), "lr": 1e-2},
])
losses = []
for xb, yb in batches(images, coarse, 64, 25):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(xb), yb)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

print("first / last loss:", round(losses[0], 4), round(losses[-1], 4))
