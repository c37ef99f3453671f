"""The loss shows the costs, and its gradient is that of the surrogate: a value minus itself, detached, adds nothing but
its gradient."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
mean = nn.Linear(3, 1)
optimizer = torch.optim.SGD(mean.parameters(), lr=0.05)
for step in range(8):
    s = torch.randn(64, 3)
    d = Normal(mean(s).squeeze(1), 0.5)
    a = d.sample()
    cost = (a - s.sum(1)).pow(2)
    surrogate = d.log_prob(a) * (cost - cost.mean())
    loss = (surrogate - surrogate.detach() + cost).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
