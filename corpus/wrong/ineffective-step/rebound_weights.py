"""The hand-written update rebinds the loop variable to a new tensor, and the model's parameters are left as they
were."""

import numpy as np
import torch

np.random.seed(10)
torch.manual_seed(10)

# logistic regression with one hidden layer, from scratch
n, d, h = 300, 5, 12
X = np.random.randn(n, d).astype(np.float32)
y = (X[:, 0] ** 2 + X[:, 1] > 0.8).astype(np.float32)
X, y = torch.from_numpy(X), torch.from_numpy(y)

W1 = (torch.randn(d, h) * 0.4).requires_grad_()
b1 = torch.zeros(h, requires_grad=True)
W2 = (torch.randn(h, 1) * 0.4).requires_grad_()
b2 = torch.zeros(1, requires_grad=True)
params = [W1, b1, W2, b2]
lr = 0.5


def forward(x):
    return (torch.tanh(x @ W1 + b1) @ W2 + b2).squeeze(1)


def nll(z, t):
    return (torch.clamp(z, min=0) - z * t + torch.log1p(torch.exp(-z.abs()))).mean()


for epoch in range(3):
    idx = np.random.permutation(n)
    for s in range(0, n, 50):
        batch = idx[s : s + 50]
        loss = nll(forward(X[batch]), y[batch])
        loss.backward()
        with torch.no_grad():
            for p in params:
                p = p - lr * p.grad  # expect: ineffective-step
        for p in params:
            p.grad = None
    print("epoch", epoch, "nll", f"{nll(forward(X), y).item():.4f}")
