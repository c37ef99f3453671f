"""Milestones meant as epochs (3 and 5 of 6) are counted in batches: the rate has dropped by 100 before the first epoch
is over."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

config = {
    "model": {"hidden": 32, "layers": 2},
    "train": {"epochs": 6, "batch_size": 40, "lr": 0.1, "milestones": [3, 5], "gamma": 0.1},
    "seed": 5,
}


def make_model(n_in, n_out, hidden, layers):
    mods = [nn.Linear(n_in, hidden), nn.ReLU()]
    for _ in range(layers - 1):
        mods += [nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
    return nn.Sequential(*mods, nn.Linear(hidden, n_out))


def spirals(n):
    t = torch.rand(n) * 3 + 0.3
    k = torch.randint(0, 3, (n,))
    ang = t * 2 + k * 2 * torch.pi / 3
    return torch.stack([t * ang.cos(), t * ang.sin()], 1) + 0.05 * torch.randn(n, 2), k


def run(cfg):
    torch.manual_seed(cfg["seed"])
    tr = cfg["train"]
    x, y = spirals(320)
    model = make_model(2, 3, **cfg["model"])
    opt = SGD(model.parameters(), lr=tr["lr"], momentum=0.9)
    sched = MultiStepLR(opt, milestones=tr["milestones"], gamma=tr["gamma"])  # expect: scheduler-cadence
    for epoch in range(tr["epochs"]):
        for idx in torch.randperm(len(x)).split(tr["batch_size"]):
            opt.zero_grad()
            F.cross_entropy(model(x[idx]), y[idx]).backward()
            opt.step()
            sched.step()  # expect: scheduler-cadence
    with torch.no_grad():
        model.eval()
        acc = (model(x).argmax(1) == y).float().mean()
    print(f"accuracy after {tr['epochs']} epochs: {acc:.3f}")


run(config)
