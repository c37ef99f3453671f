"""Reptile. The inner loop trains a copy with an optimizer of its own, and the outer gradient is the
difference of the weights, written into .grad; there is no backward for the outer step."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(251)


def make_task():
    amplitude = 0.5 + 2.0 * torch.rand(1).item()
    phase = math.pi * torch.rand(1).item()

    def sample(n):
        x = torch.rand(n, 1) * 10 - 5
        return x, amplitude * torch.sin(x + phase)

    return sample


def adapt(model, task, steps=4, lr=0.02):
    fast = copy.deepcopy(model)
    inner = torch.optim.SGD(fast.parameters(), lr=lr)
    for _ in range(steps):
        x, y = task(16)
        loss = F.mse_loss(fast(x), y)
        inner.zero_grad()
        loss.backward()
        inner.step()
    return fast, loss.item()


meta = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
outer = torch.optim.SGD(meta.parameters(), lr=0.5)
tasks_per_step = 3

for it in range(12):
    outer.zero_grad(set_to_none=False)
    for p in meta.parameters():
        p.grad = torch.zeros_like(p)
    losses = []
    for _ in range(tasks_per_step):
        fast, loss = adapt(meta, make_task())
        losses.append(loss)
        with torch.no_grad():
            for p, q in zip(meta.parameters(), fast.parameters()):
                p.grad += (p - q) / tasks_per_step
    outer.step()
    if it % 4 == 0:
        print(f"iteration {it:2d}  loss after adapting {sum(losses) / len(losses):.4f}")

test = make_task()
_, loss = adapt(meta, test, steps=8)
print(f"new task after eight steps: {loss:.4f}")
