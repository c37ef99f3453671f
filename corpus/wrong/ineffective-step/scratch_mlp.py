"""The hand-written SGD rebinds the loop variable (p = p - lr * g) instead of changing the tensor, so the weights never move."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine

torch.manual_seed(61)
torch.set_num_threads(1)


def init_params(sizes):
    params = []
    for n_in, n_out in zip(sizes[:-1], sizes[1:]):
        w = torch.randn(n_in, n_out) / n_in**0.5
        b = torch.zeros(n_out)
        params += [w.requires_grad_(), b.requires_grad_()]
    return params


def forward(params, x):
    *hidden, w, b = params
    for wi, bi in zip(hidden[::2], hidden[1::2]):
        x = torch.tanh(x @ wi + bi)
    return x @ w + b


def sgd(params, lr):
    with torch.no_grad():
        for p in params:
            p = p - lr * p.grad  # expect: ineffective-step


def clear(params):
    for p in params:
        p.grad = None


def load():
    x, y = load_wine(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(y)
    order = torch.randperm(len(y))
    x, y = x[order], y[order]
    return x[:130], y[:130], x[130:], y[130:]


def train_epoch(params, x, y, lr, batch_size):
    total = 0.0
    for idx in torch.randperm(len(x)).split(batch_size):
        loss = F.cross_entropy(forward(params, x[idx]), y[idx])
        loss.backward()
        sgd(params, lr)
        clear(params)
        total += loss.item() * len(idx)
    return total / len(x)


x_train, y_train, x_test, y_test = load()
params = init_params([13, 24, 12, 3])
lr = 0.3
for epoch in range(3):
    loss = train_epoch(params, x_train, y_train, lr, batch_size=26)
    with torch.no_grad():
        acc = (forward(params, x_test).argmax(1) == y_test).float().mean().item()
    print("epoch", epoch, "loss", round(loss, 4), "test acc", round(acc, 3))
    lr *= 0.8
