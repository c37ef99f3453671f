"""R1 penalty in a discriminator's loss without create_graph."""

import torch
from torch import nn

torch.manual_seed(0)
D = nn.Sequential(nn.Linear(2, 16), nn.Softplus(), nn.Linear(16, 1))
opt = torch.optim.Adam(D.parameters(), lr=1e-3)
for it in range(12):
    real = torch.randn(16, 2, requires_grad=True)
    fake = torch.randn(16, 2) + 2
    out = D(real)
    loss = nn.functional.softplus(-out).mean() + nn.functional.softplus(D(fake)).mean()
    (g,) = torch.autograd.grad(out.sum(), real, retain_graph=True)  # expect: broken-graph
    loss = loss + 5.0 * g.pow(2).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
