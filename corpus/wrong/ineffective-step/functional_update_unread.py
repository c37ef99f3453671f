"""A function returns the updated weights, which get a new name; each iteration begins with the initial weights."""

import torch
from torch import nn
from torch.func import functional_call, grad
import torch.nn.functional as F

torch.manual_seed(0)
net = nn.Linear(4, 3)
weights = dict(net.named_parameters())


def sgd(weights, gradients, rate):
    return {name: weights[name] - rate * gradients[name] for name in weights}


def loss_of(weights, x, y):
    return F.cross_entropy(functional_call(net, weights, (x,)), y)


for i in range(20):
    x = torch.randn(8, 4)
    y = x[:, :3].argmax(1)
    gradients = grad(loss_of)(weights, x, y)
    new_weights = sgd(weights, gradients, 0.1)  # expect: ineffective-step
print(loss_of(new_weights, x, y).item())
