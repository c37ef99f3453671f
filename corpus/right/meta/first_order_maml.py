"""First-order MAML on purpose."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
meta = torch.optim.Adam(model.parameters(), lr=1e-2)
for task in range(12):
    xs, ys, xq, yq = torch.randn(8, 3), torch.randn(8, 1), torch.randn(8, 3), torch.randn(8, 1)
    params = dict(model.named_parameters())
    loss = nn.functional.mse_loss(functional_call(model, params, (xs,)), ys)
    grads = torch.autograd.grad(loss, params.values())
    fast = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grads)}
    outer = nn.functional.mse_loss(functional_call(model, fast, (xq,)), yq)
    meta.zero_grad()
    outer.backward()
    meta.step()
