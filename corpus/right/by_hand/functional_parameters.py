"""Parameters that functional_call takes are rebound, and detached."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.func import functional_call

torch.manual_seed(0)
x, y = torch.randn(128, 8), torch.randint(3, (128,))

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
params = dict(model.named_parameters())
for step in range(20):
    i = torch.randint(128, (32,))
    loss = F.cross_entropy(functional_call(model, params, (x[i],)), y[i])
    grads = torch.autograd.grad(loss, list(params.values()))
    params = {k: (p - 0.1 * g).detach().requires_grad_() for (k, p), g in zip(params.items(), grads)}
print(loss.item(), (functional_call(model, params, (x,)).argmax(1) == y).float().mean().item())
