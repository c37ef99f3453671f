"""The prior's own loss is computed at every fourth step, but its optimizer follows the last gradient at each one."""

import torch
from torch import nn

torch.manual_seed(16)
net, prior = nn.Linear(6, 4), nn.Linear(3, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
opt_prior = torch.optim.SGD(prior.parameters(), lr=0.05)
for step in range(24):
    x, z = torch.randn(16, 6), torch.randn(16, 3)
    opt.zero_grad()
    loss = (net(x) - x[:, :4]).square().mean()
    loss.backward()
    opt.step()
    if step % 4 == 0:
        opt_prior.zero_grad()
        gap = (prior(z) - z.sum(1, keepdim=True)).square().mean()
        gap.backward()
    opt_prior.step()  # expect: missing-zero-grad
print(f"{loss.item():.3f} {gap.item():.3f}")
