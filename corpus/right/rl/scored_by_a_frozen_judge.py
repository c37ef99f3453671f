"""A policy gradient: a frozen judge scores the samples, and only their log-probability has a gradient."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(3, 2)

    def forward(self, state):
        around = Normal(self.mean(state), 0.5)
        action = around.sample()
        return action, around.log_prob(action).sum(-1)


policy = Policy()
judge = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)).requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for _ in range(12):
    state = torch.randn(32, 3)
    action, logp = policy(state)
    loss = (0.1 * logp - logp * judge(torch.cat([state, action], -1)).squeeze(-1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
