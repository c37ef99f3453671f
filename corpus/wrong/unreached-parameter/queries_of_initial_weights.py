"""Meta-learning with learned inner rates whose query loss is that of the initial weights: the inner steps
train nothing, and the rates never move."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(14)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        shapes = ((16, 1), (16,), (1, 16))
        self.vars = nn.ParameterList([nn.Parameter(0.4 * torch.randn(shape)) for shape in shapes])

    def forward(self, x, weights=None):
        first, bias, second = self.vars if weights is None else weights
        return F.linear(torch.tanh(F.linear(x, first, bias)), second)


class Meta(nn.Module):
    def __init__(self, steps=2):
        super().__init__()
        self.net = Learner()
        self.steps = steps
        self.rates = nn.ParameterList([nn.Parameter(torch.full((steps,), 0.05)) for _ in self.net.vars])
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)

    def adapt(self, x, y):
        fast = list(self.net.vars)
        for k in range(self.steps):
            grads = torch.autograd.grad(F.mse_loss(self.net(x, fast), y), fast, create_graph=True)
            fast = [p - rate[k] * g for p, g, rate in zip(fast, grads, self.rates, strict=True)]
        return fast

    def forward(self, tasks):
        losses = torch.zeros(())
        for x, y, x_query, y_query in tasks:
            fast = self.adapt(x, y)  # expect: unreached-parameter
            losses = losses + F.mse_loss(self.net(x_query), y_query)
        loss = losses / len(tasks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), len(fast)


def task():
    phase, x = 6.28 * torch.rand(1), 4 * torch.rand(20, 1) - 2
    y = torch.sin(x + phase)
    return x[:10], y[:10], x[10:], y[10:]


meta = Meta()
for step in range(12):
    loss, _ = meta([task() for _ in range(3)])
    if step % 6 == 5:
        print(f"step {step} loss {loss:.4f}")
