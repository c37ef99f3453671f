"""The check of the validation before the first epoch leaves the model in eval mode for good: its four
BatchNorms have seen no batch instead of 8, and gradients are off by 56% and more."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ResBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class Engine:
    def __init__(self, model, optimizer, train_loader, val_loader):
        self.model, self.optimizer = model, optimizer
        self.train_loader, self.val_loader = train_loader, val_loader

    def fit(self, max_epochs):
        self.sanity_check()
        for self.epoch in range(max_epochs):
            self.training_epoch()
            self.validation_epoch()

    def sanity_check(self):
        batch = next(iter(self.val_loader))
        self.model.eval()  # expect: train-eval-mode
        with torch.no_grad():
            assert torch.isfinite(self.step(batch))

    def step(self, batch):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def training_epoch(self):
        for batch in self.train_loader:
            loss = self.step(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def validation_epoch(self):
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            losses = [self.step(batch).item() for batch in self.val_loader]
        self.model.train(training)
        print(f"epoch {self.epoch}: val_loss {sum(losses) / len(losses):.4f}")


def main():
    torch.manual_seed(38)
    y = torch.randint(3, (128,))
    x = 3 + torch.randn(3, 3, 8, 8)[y] + torch.randn(128, 3, 8, 8)
    train, val = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        ResBlock(12),
        ResBlock(12),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    Engine(model, optimizer, DataLoader(train, 24, shuffle=True), DataLoader(val, 16)).fit(2)


if __name__ == "__main__":
    main()
