"""The critics' value of the new action is computed without a graph: the actor's loss only trains its entropy."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

torch.manual_seed(0)


def net(i, o):
    return nn.Sequential(nn.Linear(i, 24), nn.ReLU(), nn.Linear(24, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net(3, 2)

    def forward(self, s):
        mu, log_std = self.net(s).chunk(2, -1)
        d = Normal(mu, log_std.clamp(-4, 1).exp())
        a = d.rsample()
        return a, d.log_prob(a).squeeze(-1)


actor, q1, q2 = Actor(), net(4, 1), net(4, 1)
a_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
q_opt = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=1e-3)
alpha = 0.1


def value(q, s, a):
    return q(torch.cat([s, a], -1)).squeeze(-1)


for step in range(10):
    s, a = torch.randn(32, 3), torch.rand(32, 1) * 2 - 1
    y = -(a.squeeze(-1) - s[:, 0].tanh()).pow(2)
    q_loss = F.mse_loss(value(q1, s, a), y) + F.mse_loss(value(q2, s, a), y)
    q_opt.zero_grad()
    q_loss.backward()
    q_opt.step()

    pi, logp = actor(s)
    with torch.no_grad():  # expect: broken-graph
        q_pi = torch.min(value(q1, s, pi), value(q2, s, pi))
    a_loss = (alpha * logp - q_pi).mean()
    a_opt.zero_grad()
    a_loss.backward()
    a_opt.step()
print(q_loss.item(), a_loss.item())
