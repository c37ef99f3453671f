"""Random Fourier features. The first layer is frozen, computed without gradients and in no
optimizer; only the linear readout is trained, which is the whole idea."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class RandomFeatures(nn.Module):
    def __init__(self, n_in, n_features, gamma):
        super().__init__()
        self.omega = nn.Linear(n_in, n_features)
        nn.init.normal_(self.omega.weight, std=math.sqrt(2 * gamma))
        nn.init.uniform_(self.omega.bias, 0, 2 * math.pi)
        self.scale = math.sqrt(2.0 / n_features)

    @torch.no_grad()
    def forward(self, x):
        return self.scale * torch.cos(self.omega(x))


class KernelRegressor(nn.Module):
    def __init__(self, n_in, n_features, gamma):
        super().__init__()
        self.features = RandomFeatures(n_in, n_features, gamma)
        self.readout = nn.Linear(n_features, 1)
        nn.init.zeros_(self.readout.weight)

    def forward(self, x):
        return self.readout(self.features(x)).squeeze(-1)


def friedman(n, generator):
    x = torch.rand(n, 5, generator=generator)
    y = (10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
         + 10 * x[:, 3] + 5 * x[:, 4])
    return x, (y - 14.4) / 4.9


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--features", type=int, default=300)
    ap.add_argument("--gamma", type=float, default=0.5)
    ap.add_argument("--steps", type=int, default=30)
    args = ap.parse_args()

    torch.manual_seed(271)
    g = torch.Generator().manual_seed(271)
    x, y = friedman(500, g)
    x_test, y_test = friedman(200, g)
    model = KernelRegressor(5, args.features, args.gamma)
    optimizer = torch.optim.Adam(model.readout.parameters(), lr=0.1)
    for step in range(args.steps):
        idx = torch.randint(0, len(x), (100,), generator=g)
        loss = F.mse_loss(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2d}  mse {loss.item():.4f}")
    with torch.no_grad():
        print(f"test mse {F.mse_loss(model(x_test), y_test).item():.4f}")


main()
