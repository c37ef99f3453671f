"""The number of micro-batches is an argument, and no loss is divided by it: the gradient is four times too large."""

import torch
import torch.nn.functional as F
from torch import nn


def fit(net, batches, accum_steps, rate=0.05):
    sgd = torch.optim.SGD(net.parameters(), lr=rate)
    for number, (x, y) in enumerate(batches):
        error = F.smooth_l1_loss(net(x), y)
        error.backward()  # expect: accumulation-scaling
        if (number + 1) % accum_steps == 0:
            sgd.step()
            sgd.zero_grad()
    return error.item()


torch.manual_seed(33)
x = torch.randn(128, 5)
y = x.prod(1, keepdim=True)
net = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 1))
print(f"{fit(net, list(zip(x.split(8), y.split(8))), accum_steps=4):.3f}")
