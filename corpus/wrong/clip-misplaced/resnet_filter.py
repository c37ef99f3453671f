"""The filter object over the parameters is used up by the optimizer's constructor, so clip_grad_norm_ later gets an empty iterator and clips nothing."""

import torch
import torch.nn as nn


class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class ResMLP(nn.Module):
    def __init__(self, n_in, dim=20, depth=3):
        super().__init__()
        self.stem = nn.Linear(n_in, dim)
        self.blocks = nn.Sequential(*[ResidualBlock(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 1)
        self.register_buffer("mean", torch.zeros(n_in))
        self.register_buffer("std", torch.ones(n_in))

    def fit_scaler(self, x):
        self.mean.copy_(x.mean(0))
        self.std.copy_(x.std(0))

    def forward(self, x):
        x = (x - self.mean) / self.std
        return self.head(self.blocks(self.stem(x))).squeeze(-1)


def friedman(n, g):
    x = torch.rand(n, 8, generator=g)
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, y + torch.randn(n, generator=g)


def train(model, x, y, *, epochs, lr, max_grad_norm, freeze_stem=False):
    model.stem.requires_grad_(not freeze_stem)
    params = filter(lambda p: p.requires_grad, model.parameters())  # expect: clip-misplaced
    optimizer = torch.optim.SGD(params, lr=lr, momentum=0.5)
    criterion = nn.MSELoss()
    for epoch in range(epochs):
        total = 0.0
        for idx in torch.randperm(len(x)).split(32):
            loss = criterion(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, max_grad_norm)  # expect: clip-misplaced
            optimizer.step()
            total += loss.item() * len(idx)
        print("epoch %d  mse %.3f" % (epoch, total / len(x)))


def main():
    torch.manual_seed(12)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(4)
    x, y = friedman(256, g)
    x_test, y_test = friedman(64, g)
    model = ResMLP(8)
    model.fit_scaler(x)
    train(model, x, y, epochs=3, lr=0.004, max_grad_norm=2.0)
    model.eval()
    with torch.no_grad():
        print("test mse %.3f" % nn.functional.mse_loss(model(x_test), y_test).item())


if __name__ == "__main__":
    main()
