"""Looks like gradients that are thrown away: the attack's backward fills the model too, which is cleared
before the training loss is taken on the attacked batch."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def fgsm(model, x, y, epsilon):
    x = x.clone().requires_grad_(True)
    F.cross_entropy(model(x), y).backward()
    return (x + epsilon * x.grad.sign()).clamp(0, 1).detach()


def pgd(model, x, y, epsilon, steps=2):
    attacked = x + epsilon * (2 * torch.rand_like(x) - 1)
    for _ in range(steps):
        attacked.requires_grad_(True)
        (g,) = torch.autograd.grad(F.cross_entropy(model(attacked), y), attacked)
        attacked = (x + (attacked.detach() + epsilon / 2 * g.sign() - x).clamp(-epsilon, epsilon)).clamp(0, 1)
    return attacked


def main():
    torch.manual_seed(14)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:256], dtype=torch.float32) / 16, torch.tensor(y[:256])
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(3):
        for idx in torch.randperm(256).split(32):
            attack = fgsm if epoch < 2 else pgd
            x_adv = attack(model, x[idx], y[idx], epsilon=0.05)
            optimizer.zero_grad()
            loss = 0.5 * F.cross_entropy(model(x[idx]), y[idx]) + 0.5 * F.cross_entropy(model(x_adv), y[idx])
            loss.backward()
            optimizer.step()
        robust = (model(pgd(model, x, y, 0.05)).argmax(1) == y).float().mean()
        print(f"epoch {epoch} loss {loss.item():.3f} robust accuracy {robust.item():.3f}")


main()
