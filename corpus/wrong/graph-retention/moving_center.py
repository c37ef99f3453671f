"""The moving centre is carried from batch to batch with its graph, which grows by one link a step: 6 nodes more
each, 31 kB after 20 steps in place of 2, and backward runs through all of them."""

import torch
from torch import nn


class CenteredProjection(nn.Module):
    """Linear map to a space in which normal samples lie close to a moving centre."""

    def __init__(self, n_in, n_out, momentum=0.9):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out, bias=False)
        self.momentum = momentum
        self.center = torch.zeros(n_out)

    def forward(self, x):
        z = self.linear(x)
        self.center = self.momentum * self.center + (1 - self.momentum) * z.mean(0)  # expect: graph-retention
        return z


def one_class_loss(model, z, spread=1.0):
    distance = (z - model.center).pow(2).sum(1)
    volume = (torch.cov(model.linear.weight).diagonal() - spread).pow(2).mean()
    return distance.mean() + volume


def stream(n, batch_size, dim, seed):
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(3, dim, generator=g)
    for _ in range(n):
        yield torch.randn(batch_size, 3, generator=g) @ mix + 0.05 * torch.randn(batch_size, dim, generator=g)


def main():
    torch.manual_seed(57)
    model = CenteredProjection(12, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3)
    for step, x in enumerate(stream(20, 32, 12, seed=57)):
        loss = one_class_loss(model, model(x))
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        if step % 5 == 4:
            print(f"step {step + 1} loss {loss.item():.4f}")


main()
