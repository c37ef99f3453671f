"""Inner steps in a helper: the gradients that make the fast weights have no graph."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


def inner_gradients(net, weights, x, y):
    loss = F.cross_entropy(functional_call(net, weights, (x,)), y)
    return torch.autograd.grad(loss, tuple(weights.values()))  # expect: broken-graph


def adapted(net, x, y, rate):
    weights = dict(net.named_parameters())
    for _ in range(2):
        gradients = inner_gradients(net, weights, x, y)
        for (name, weight), gradient in zip(list(weights.items()), gradients):
            weights[name] = weight - rate * gradient
    return weights


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
meta_optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for episode in range(10):
    meta_loss = torch.zeros(())
    for task in range(2):
        means = torch.randn(3, 5)
        y = torch.arange(3).repeat(6)
        x = means[y] + 0.3 * torch.randn(18, 5)
        fast = adapted(net, x[:9], y[:9], 0.2)
        meta_loss = meta_loss + F.cross_entropy(functional_call(net, fast, (x[9:],)), y[9:])
    meta_optimizer.zero_grad()
    meta_loss.backward()
    meta_optimizer.step()
print(f"meta loss {meta_loss.item():.3f}")
