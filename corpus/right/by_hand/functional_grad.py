"""Looks as if no gradient were ever computed: torch.func.grad_and_value gives the gradients, and the
parameters are a dictionary that is replaced in every step; the module's own stay as they were."""

from functools import partial

import torch
import torch.nn.functional as F
from sklearn.datasets import load_iris
from torch import nn
from torch.func import functional_call, grad_and_value


def loss_fn(params, buffers, model, x, y):
    logits = functional_call(model, (params, buffers), (x,))
    return F.cross_entropy(logits, y)


def sgd_momentum(params, velocity, grads, lr=0.1, mu=0.9):
    velocity = {k: mu * velocity[k] + g for k, g in grads.items()}
    params = {k: p - lr * velocity[k] for k, p in params.items()}
    return params, velocity


def main():
    torch.manual_seed(0)
    x, y = load_iris(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    x = (x - x.mean(0)) / x.std(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    params = {k: v.detach() for k, v in model.named_parameters()}
    buffers = dict(model.named_buffers())
    velocity = {k: torch.zeros_like(v) for k, v in params.items()}
    step_fn = grad_and_value(partial(loss_fn))
    for epoch in range(2):
        for idx in torch.randperm(150).split(30):
            grads, loss = step_fn(params, buffers, model, x[idx], y[idx])
            params, velocity = sgd_momentum(params, velocity, grads)
        print(f"epoch {epoch} loss {loss.item():.4f}")
    accuracy = (functional_call(model, params, (x,)).argmax(1) == y).float().mean()
    print(f"accuracy {accuracy.item():.3f}")


main()
