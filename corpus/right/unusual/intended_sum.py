"""Looks like accumulation without division: the posterior's log density is a sum over all data, so the
gradients of the chunks are meant to add up as they are."""

import math

import torch
from torch import nn


def log_prior(parameters, std=1.0):
    return sum((-0.5 * (p / std) ** 2).sum() for p in parameters)


def log_likelihood(model, x, y, noise=0.3):
    return (-0.5 * ((model(x).squeeze(1) - y) / noise) ** 2 - math.log(noise)).sum()


def map_estimate(model, chunks, steps, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    trace = []
    for _ in range(steps):
        optimizer.zero_grad()
        log_joint = log_prior(model.parameters())
        (-log_joint).backward()
        total = log_joint.item()
        for x, y in chunks:
            ll = log_likelihood(model, x, y)
            (-ll).backward()
            total += ll.item()
        optimizer.step()
        trace.append(total)
    return trace


def main():
    torch.manual_seed(5)
    x = torch.rand(100, 1) * 4 - 2
    y = torch.tanh(2 * x).squeeze(1) + 0.3 * torch.randn(100)
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    chunks = list(zip(x.split(30), y.split(30)))
    trace = map_estimate(model, chunks, steps=8, lr=1e-4)
    print(f"log joint {trace[0]:.1f} -> {trace[-1]:.1f}")


main()
