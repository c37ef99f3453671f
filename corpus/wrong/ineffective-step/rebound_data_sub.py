"""p.data.sub() returns a new tensor."""

import torch
from torch import nn

torch.manual_seed(0)


def sgd(params, rate):
    for p in params:
        p.data.sub(rate * p.grad)  # expect: ineffective-step
        p.grad.zero_()


net = nn.Linear(3, 1)
for step in range(20):
    x = torch.randn(16, 3)
    loss = (net(x).squeeze() - x.sum(1)).pow(2).mean()
    loss.backward()
    sgd(net.parameters(), 0.1)
