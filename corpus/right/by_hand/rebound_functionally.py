"""functional_call with a dict of parameters that is rebound under no_grad."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
net = nn.Linear(3, 1)
params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
for step in range(20):
    x = torch.randn(16, 3)
    loss = (functional_call(net, params, (x,)).squeeze() - x.sum(1)).pow(2).mean()
    grads = torch.autograd.grad(loss, list(params.values()))
    with torch.no_grad():
        params = {k: (p - 0.1 * g).requires_grad_() for (k, p), g in zip(params.items(), grads)}
