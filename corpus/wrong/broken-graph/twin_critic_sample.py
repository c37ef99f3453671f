"""Soft actor-critic with one module for both critics, frozen in the actor's step. The action is a plain sample."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.spread = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, state):
        around = Normal(self.trunk(state), self.spread(state).clamp(-3, 1).exp())
        action = around.sample()  # expect: broken-graph
        return action, around.log_prob(action).sum(-1)


class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
        self.second = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, state, action):
        both = torch.cat([state, action], -1)
        return (self.first(both) + self.second(both)).squeeze(-1)


pilot, twins = Pilot(), Twins()
of_pilot, of_twins = (
    torch.optim.Adam(pilot.parameters(), lr=1e-2),
    torch.optim.Adam(twins.parameters(), lr=1e-2),
)
for _ in range(12):
    state = torch.randn(32, 3)
    with torch.no_grad():
        action, _ = pilot(state)
    of_twins.zero_grad()
    (twins(state, action) + (action - state[:, :2]).square().sum(-1)).square().mean().backward()
    of_twins.step()
    twins.requires_grad_(False)
    action, logp = pilot(state)
    of_pilot.zero_grad()
    (0.1 * logp - twins(state=state, action=action)).mean().backward()
    of_pilot.step()
    twins.requires_grad_(True)
