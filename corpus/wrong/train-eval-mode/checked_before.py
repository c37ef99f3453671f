"""A check of the network before training leaves it in eval mode: no batch norm learns its statistics."""

import torch
from torch import nn


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh()
        )
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


def mean_error(model, data):
    model.eval()  # expect: train-eval-mode
    return sum((model(x) - y).abs().mean().item() for x, y in data) / len(data)


def train(model, data, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for x, y in data:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()


def main():
    torch.manual_seed(2)
    x = 3 * torch.randn(320, 6) + 1
    y = x[:, 0].sin() + 0.3 * x[:, 1]
    batches = list(zip(x.split(40), y.split(40), strict=True))
    model = Regressor()
    with torch.no_grad():
        print(f"untrained: {mean_error(model, batches[6:]):.3f}")
    train(model, batches[:6], epochs=4)
    with torch.no_grad():
        print(f"trained: {mean_error(model, batches[6:]):.3f}")


if __name__ == "__main__":
    main()
