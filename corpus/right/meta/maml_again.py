"""The inner updates are made on tensors that are not parameters, with create_graph; only the outer loss steps the
optimizer, once for several backwards that are divided by the number of tasks."""

import torch
import torch.nn as nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
meta_opt = torch.optim.Adam(model.parameters(), lr=5e-3)
INNER_LR, TASKS = 0.05, 4


def sample_task():
    amp, phase = torch.rand(1) * 2 + 0.5, torch.rand(1) * 3.14
    return lambda x: amp * torch.sin(x + phase)


def adapt(params, x, y, steps=2):
    for _ in range(steps):
        loss = nn.functional.mse_loss(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, params.values(), create_graph=True)
        params = {k: v - INNER_LR * g for (k, v), g in zip(params.items(), grads)}
    return params


for epoch in range(2):
    total = 0.0
    for it in range(8):
        meta_opt.zero_grad()
        for _ in range(TASKS):
            f = sample_task()
            xs, xq = torch.rand(10, 1) * 6 - 3, torch.rand(10, 1) * 6 - 3
            fast = adapt(dict(model.named_parameters()), xs, f(xs))
            meta_loss = nn.functional.mse_loss(functional_call(model, fast, (xq,)), f(xq)) / TASKS
            meta_loss.backward()
            total += meta_loss.item() / 8
        meta_opt.step()
    print(f"epoch {epoch} query loss {total:.4f}")
