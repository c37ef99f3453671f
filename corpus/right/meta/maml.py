"""Looks like graphs kept and parameters rebound: the inner step is differentiated through (create_graph),
and the losses of the tasks are averaged before one backward."""

import math

import torch
import torch.nn.functional as F

torch.manual_seed(0)
INNER_LR, META_BATCH, SHOTS = 0.05, 4, 8


def sinusoid():
    amplitude, phase = 0.5 + 2 * torch.rand(1), math.pi * torch.rand(1)
    x = torch.rand(2 * SHOTS, 1) * 10 - 5
    y = amplitude * torch.sin(x + phase)
    return (x[:SHOTS], y[:SHOTS]), (x[SHOTS:], y[SHOTS:])


def net(x, weights):
    w1, b1, w2, b2, w3, b3 = weights
    h = torch.tanh(F.linear(x, w1, b1))
    h = torch.tanh(F.linear(h, w2, b2))
    return F.linear(h, w3, b3)


def init(*sizes):
    weights = []
    for i, o in zip(sizes[:-1], sizes[1:]):
        weights.append((torch.randn(o, i) / math.sqrt(i)).requires_grad_())
        weights.append(torch.zeros(o, requires_grad=True))
    return weights


def adapt(weights, x, y, steps=2):
    fast = weights
    for _ in range(steps):
        loss = F.mse_loss(net(x, fast), y)
        grads = torch.autograd.grad(loss, fast, create_graph=True)
        fast = [w - INNER_LR * g for w, g in zip(fast, grads)]
    return fast


meta_weights = init(1, 24, 24, 1)
meta_opt = torch.optim.Adam(meta_weights, lr=3e-3)

for it in range(6):
    meta_opt.zero_grad()
    outer = []
    for _ in range(META_BATCH):
        (xs, ys), (xq, yq) = sinusoid()
        fast = adapt(meta_weights, xs, ys)
        outer.append(F.mse_loss(net(xq, fast), yq))
    meta_loss = torch.stack(outer).mean()
    meta_loss.backward()
    meta_opt.step()
    if it % 2 == 1:
        print(f"meta iteration {it + 1}: query loss {meta_loss.item():.4f}")
