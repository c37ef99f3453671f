"""A policy's sampled action is concatenated with the state for the model of the world, and scored by the policy."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
policy = nn.Linear(4, 2)
spread = nn.Parameter(torch.zeros(2))
world = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
opt = torch.optim.Adam([*policy.parameters(), spread, *world.parameters()], lr=2e-3)
state = torch.randn(32, 4)
for step in range(15):
    dist = Normal(policy(state), spread.exp())
    action = dist.sample()
    after = state + 0.1 * torch.cat([action, -action], 1)
    reward = -after.square().sum(1)
    predicted = world(torch.cat([state, action], 1))
    advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
    loss = -(advantage * dist.log_prob(action).sum(1)).mean() + (predicted - after).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    state = torch.randn(32, 4)
print(f"reward {reward.mean().item():.3f}")
