"""The classifier is replaced after the optimizer was made, which goes on holding the old one: the new one is
never stepped, and the gradients that are used lack 60 to 70% of their size."""

import argparse

import torch
import torch.nn as nn


class SmallNet(nn.Module):
    def __init__(self, num_classes=100):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.avgpool = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.features(x)), 1))


def build(args):
    model = SmallNet()
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    if args.num_classes != model.fc.out_features:
        model.fc = nn.Linear(model.fc.in_features, args.num_classes)  # expect: stale-optimizer-params
    return model, optimizer


def train(loader, model, criterion, optimizer):
    model.train()
    losses = []
    for images, target in loader:
        output = model(images)
        loss = criterion(output, target)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-classes", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    args = parser.parse_args()
    torch.manual_seed(6)
    target = torch.arange(112) % args.num_classes
    images = torch.randn(args.num_classes, 3, 10, 10)[target] + 0.5 * torch.randn(112, 3, 10, 10)
    dataset = torch.utils.data.TensorDataset(images, target)
    loader = torch.utils.data.DataLoader(dataset, batch_size=28, shuffle=True)
    model, optimizer = build(args)
    for epoch in range(args.epochs):
        print(f"Epoch {epoch}\tLoss {train(loader, model, nn.CrossEntropyLoss(), optimizer):.4f}")


if __name__ == "__main__":
    main()
