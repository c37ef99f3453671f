"""The validation losses of an epoch are collected with their graphs: 12 batches of activations at once."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader, criterion):
    model.eval()
    losses = []
    for x, y in loader:
        loss = criterion(model(x), y)
        losses.append(loss)  # expect: graph-retention
    model.train()
    return torch.stack(losses).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args([])
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
    train, val = DataLoader(data, 16, shuffle=True), DataLoader(data, 8)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for x, y in train:
            opt.zero_grad()
            criterion(model(x), y).backward()
            opt.step()
        print(epoch, round(evaluate(model, val, criterion), 3))


if __name__ == "__main__":
    main()
