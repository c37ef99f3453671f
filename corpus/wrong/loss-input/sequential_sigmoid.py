"""The network ends in a Sigmoid layer, and the loss is the one for logits: no output below 0 can say "no"."""

import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer


def build(width):
    return nn.Sequential(
        nn.Linear(30, width),
        nn.ReLU(),
        nn.Linear(width, 1),
        nn.Sigmoid(),  # expect: loss-input
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(1)
    raw = load_breast_cancer()
    x = torch.tensor(raw.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(raw.target, dtype=torch.float32).unsqueeze(1)
    model = build(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(2):
        for part in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x[part]), y[part])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
