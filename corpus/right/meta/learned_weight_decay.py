"""A learned loss weight: the inner step is made without create_graph, so the weight gets no gradient."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
w = torch.randn(4, 2, requires_grad=True)
log_reg = nn.Parameter(torch.zeros(4))
outer = torch.optim.Adam([log_reg], lr=0.05)
for it in range(10):
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    xv, yv = torch.randn(16, 4), torch.randn(16, 2)
    inner = F.mse_loss(x @ w, y) + (log_reg.exp()[:, None] * w.pow(2)).sum()
    (g,) = torch.autograd.grad(inner, w, create_graph=True)
    fast = w - 0.1 * g
    val = F.mse_loss(xv @ fast, yv)
    outer.zero_grad()
    val.backward()
    outer.step()
    with torch.no_grad():
        w.copy_(fast)
    w.grad = None
