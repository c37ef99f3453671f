"""No optimizer at all: the weights are written in place under no_grad, with a momentum buffer and a decay by hand."""

import numpy as np
import torch

torch.manual_seed(1)
x = torch.rand(240, 3)
y = (6 * x[:, 0]).sin() + x[:, 1] * x[:, 2]

shapes = [(3, 24), (24,), (24, 1), (1,)]
weights = [
    (torch.randn(s) / np.sqrt(s[0]) if len(s) == 2 else torch.zeros(s)).requires_grad_() for s in shapes
]
velocity = [torch.zeros_like(w) for w in weights]
lr, mu, wd = 0.05, 0.9, 1e-4


def predict(x):
    w1, b1, w2, b2 = weights
    return (torch.relu(x @ w1 + b1) @ w2 + b2).squeeze(1)


for epoch in range(4):
    losses = []
    for idx in torch.randperm(240).split(24):
        loss = (predict(x[idx]) - y[idx]).square().mean()
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, v, g in zip(weights, velocity, grads):
                g = g + wd * w
                v.mul_(mu).add_(g)
                w -= lr * (g + mu * v)
        losses.append(loss.item())
    print(f"epoch {epoch} mse {np.mean(losses):.4f}")
