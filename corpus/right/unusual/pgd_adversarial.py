"""Several gradients are taken for the inputs before the one that counts, with sign, clamp and detach on the way: the inner
attack is not meant to be differentiated."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


def pgd(model, x, y, eps, alpha, steps):
    delta = torch.empty_like(x).uniform_(-eps, eps).requires_grad_()
    for _ in range(steps):
        loss = F.cross_entropy(model((x + delta).clamp(0, 1)), y)
        (grad,) = torch.autograd.grad(loss, delta)
        delta.data = (delta.data + alpha * grad.sign()).clamp(-eps, eps)
    return (x + delta).clamp(0, 1).detach()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--eps", type=float, default=0.1)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()
    torch.manual_seed(0)
    d = load_digits()
    x, y = torch.tensor(d.data[:500] / 16, dtype=torch.float32), torch.tensor(d.target[:500])
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for epoch in range(args.epochs):
        for idx in torch.randperm(500).split(50):
            x_adv = pgd(model, x[idx], y[idx], args.eps, args.eps / 2, args.steps)
            loss = F.cross_entropy(model(x_adv), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} robust loss {loss.item():.4f}")


main()
