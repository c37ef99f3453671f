"""A network written by hand makes its next parameters from the last ones without a detach: each step's graph leads back
to the first."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
x, y = torch.randn(128, 8), torch.randint(3, (128,))

w1 = (0.3 * torch.randn(8, 16)).requires_grad_()
b1 = torch.zeros(16, requires_grad=True)
w2 = (0.3 * torch.randn(16, 3)).requires_grad_()
params = [w1, b1, w2]


def net(x, params):
    w1, b1, w2 = params
    return torch.relu(x @ w1 + b1) @ w2


for step in range(20):
    loss = F.cross_entropy(net(x, params), y)
    grads = torch.autograd.grad(loss, params)
    params = [p - 0.1 * g for p, g in zip(params, grads)]  # expect: graph-retention
    print(step, loss.item())
