"""The score function's gradient needs a sample without a graph."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
actor, value = nn.Linear(4, 2), nn.Linear(4, 1)
log_std = nn.Parameter(torch.zeros(2))
opt = torch.optim.Adam([*actor.parameters(), *value.parameters(), log_std], 1e-3)
for step in range(20):
    s = torch.randn(16, 4)
    dist = Normal(actor(s), log_std.exp())
    a = dist.sample()
    ret = -(a - 1).square().sum(1)
    v = value(s).squeeze(1)
    adv = (ret - v).detach()
    loss = -(dist.log_prob(a).sum(1) * adv).mean() + (v - ret).square().mean() - 0.01 * dist.entropy().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
