"""The pretrained features are frozen, but `model.train()` leaves their BatchNorm layers in training mode, so the running
statistics drift to the new data."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def pretrained_features():
    g = torch.Generator().manual_seed(100)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    net.train()
    with torch.no_grad():
        for _ in range(20):
            net(torch.randn(32, 3, 8, 8, generator=g))
    return net


class TransferModel(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.features = pretrained_features()
        for param in self.features.parameters():
            param.requires_grad = False
        self.classifier = nn.Linear(24, n_classes)

    def forward(self, x):
        return self.classifier(self.features(x))


torch.manual_seed(0)
y = torch.randint(0, 3, (180,))
x = 1.5 + 0.7 * torch.randn(180, 3, 8, 8)
x[torch.arange(180), y] += 1.0
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)

model = TransferModel(3)
optimizer = torch.optim.Adam(model.classifier.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    model.train()  # expect: frozen-state-drift
    for images, labels in loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    print(f"Epoch {epoch}: loss {loss.item():.3f}, acc {acc:.3f}")
