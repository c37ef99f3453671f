"""Data-parallel training imitated in one process. Each worker differentiates its own replica, and
the main model gets its .grad assigned as a weighted sum, without ever calling backward itself."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {"workers": 3, "global_batch": 70, "lr": 0.05, "momentum": 0.9, "steps": 20, "seed": 241}


class Worker:
    def __init__(self, model):
        self.replica = copy.deepcopy(model)

    def sync(self, model):
        self.replica.load_state_dict(model.state_dict())

    def gradients(self, x, y):
        loss = F.mse_loss(self.replica(x), y)
        grads = torch.autograd.grad(loss, list(self.replica.parameters()))
        return grads, loss.item(), len(x)


def all_reduce(model, results):
    total = sum(n for _, _, n in results)
    for i, p in enumerate(model.parameters()):
        p.grad = sum(grads[i] * (n / total) for grads, _, n in results)
    return sum(loss * n for _, loss, n in results) / total


def dataset(n=600):
    x = torch.rand(n, 3) * 2 - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + x[:, 2:] ** 2
    return x, y


def main(cfg):
    torch.manual_seed(cfg["seed"])
    x, y = dataset()
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
    workers = [Worker(model) for _ in range(cfg["workers"])]
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=cfg["momentum"])
    for step in range(cfg["steps"]):
        idx = torch.randint(0, len(x), (cfg["global_batch"],))
        parts = idx.split([30, 25, 15])
        results = []
        for worker, part in zip(workers, parts):
            worker.sync(model)
            results.append(worker.gradients(x[part], y[part]))
        loss = all_reduce(model, results)
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step:2d}  loss {loss:.4f}")
    print(f"final loss {loss:.4f}")


main(CONFIG)
