"""Looks like a broken graph and a model in eval mode: the backbone is meant to be frozen, its features are
taken once under no_grad, and only the head is trained."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pretrained_backbone():
    torch.manual_seed(123)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )


class Probe(nn.Module):
    def __init__(self, backbone, n_classes):
        super().__init__()
        self.backbone = backbone
        for p in self.backbone.parameters():
            p.requires_grad = False
        self.fc = nn.Linear(96, n_classes)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.fc(features)


def main():
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[:320], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels[:320])
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    probe = Probe(pretrained_backbone(), 10).train()
    optimizer = torch.optim.SGD(probe.fc.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-4)
    for epoch in range(2):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(probe(xb), yb)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")


main()
