"""Looks like inner steps that are cut off: first-order MAML leaves the graph out in all of them."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
INNER_LR, STEPS, TASKS, SHOTS = 0.05, 3, 4, 10


class Regressor(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.weights = nn.ParameterList()
        for n_in, n_out in ((2, hidden), (hidden, hidden), (hidden, 1)):
            self.weights.append(nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5))
            self.weights.append(nn.Parameter(torch.zeros(n_out)))

    def forward(self, x, weights=None):
        weights = list(self.weights) if weights is None else weights
        for i in range(0, len(weights), 2):
            x = F.linear(x, weights[i], weights[i + 1])
            if i + 2 < len(weights):
                x = torch.tanh(x)
        return x


def plane():
    slope = torch.randn(2, 1)
    x = torch.rand(2 * SHOTS, 2) * 2 - 1
    return x, torch.sin(2 * x @ slope)


def adapted(net, x, y):
    loss = F.mse_loss(net(x), y)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    weights = [p - INNER_LR * g for p, g in zip(net.parameters(), grads)]
    for _ in range(STEPS - 1):
        loss = F.mse_loss(net(x, weights), y)
        grads = torch.autograd.grad(loss, weights)
        weights = [p - INNER_LR * g for p, g in zip(weights, grads)]
    return weights


net = Regressor()
meta_opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for iteration in range(8):
    outer = 0.0
    for _ in range(TASKS):
        x, y = plane()
        fast = adapted(net, x[:SHOTS], y[:SHOTS])
        outer = outer + F.mse_loss(net(x[SHOTS:], fast), y[SHOTS:]) / TASKS
    meta_opt.zero_grad()
    outer.backward()
    meta_opt.step()
    if iteration % 4 == 3:
        print(f"iteration {iteration + 1}, outer loss {outer.item():.4f}")
