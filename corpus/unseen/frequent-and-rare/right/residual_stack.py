"""Residual MLP. The blocks are built in a loop and the last one is scaled to zero at the start;
all of them are in a ModuleList."""
import argparse
import math
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class ResNet1d(nn.Module):
    def __init__(self, in_dim, dim, depth):
        super().__init__()
        self.stem = nn.Linear(in_dim, dim)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(Block(dim))
        with torch.no_grad():
            self.blocks[-1].down.weight.zero_()
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def target_fn(x):
    r = x.norm(dim=1, keepdim=True)
    return torch.sin(math.pi * r) + x[:, :1] * x[:, 1:2]


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--lr", type=float, default=1e-2)
    return p.parse_args([])


def main():
    args = parse()
    torch.manual_seed(31)
    x = torch.rand(256, 2) * 2 - 1
    y = target_fn(x)
    model = ResNet1d(2, args.dim, args.depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    first = None
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        sched.step()
        first = loss.item() if first is None else first
    print(f"mse {first:.4f} -> {loss.item():.4f}")


if __name__ == "__main__":
    main()
