"""An advantage actor-critic prints its policy's entropy, only to follow the exploration."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)

policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
value = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-3)
for update in range(12):
    states = torch.randn(64, 6)
    dist = Categorical(logits=policy(states))
    actions = dist.sample()
    returns = (actions == states[:, :4].argmax(1)).float()
    baseline = value(states).squeeze(1)
    advantage = (returns - baseline).detach()
    policy_loss = -(dist.log_prob(actions) * advantage).mean()
    value_loss = (returns - baseline).pow(2).mean()
    entropy = dist.entropy().mean()
    loss = policy_loss + 0.5 * value_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{update}: {loss.item():.3f} entropy {entropy.item():.3f}")
