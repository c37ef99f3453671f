"""Looks like an optimizer that is never stepped: the script is told to only attack the network, with PGD and with
the norms of its gradients, so the branch that trains doesn't run."""

import torch
from torch import nn

torch.manual_seed(0)
ONLY_ATTACK = True
net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, 2)
x, y = torch.randn(40, 10), torch.randint(3, (40,))


def train_epoch():
    for xs, ys in zip(x.split(8), y.split(8), strict=True):
        opt.zero_grad()
        nn.functional.cross_entropy(net(xs), ys).backward()
        opt.step()
    sched.step()


def attack(steps=7, eps=0.05):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(steps):
        net.zero_grad()
        nn.functional.cross_entropy(net(x + delta), y).backward()
        with torch.no_grad():
            delta += 0.02 * delta.grad.sign()
            delta.clamp_(-eps, eps)
        delta.grad = None
    return (net(x + delta).argmax(-1) != y).float().mean().item()


def sharpness():
    norms = []
    for xs, ys in zip(x.split(8), y.split(8), strict=True):
        opt.zero_grad()
        nn.functional.cross_entropy(net(xs), ys).backward()
        norms.append(sum(p.grad.square().sum() for p in net.parameters()).sqrt().item())
    return max(norms)


if not ONLY_ATTACK:
    train_epoch()
print("error under attack", attack())
print("largest gradient", sharpness())
