"""The mean of log p - log p_old is a penalty in the loss, and the old log-probabilities have no graph: they come from
the same network, a few updates ago."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
best = torch.randn(4, 3)
for rollout in range(3):
    states = torch.randn(48, 4)
    old = Categorical(logits=policy(states))
    actions = old.sample()
    old_log_probs = old.log_prob(actions).detach()
    reward = ((states @ best).argmax(1) == actions).float()
    advantage = reward - reward.mean()
    for epoch in range(3):
        log_probs = Categorical(logits=policy(states)).log_prob(actions)
        ratio = (log_probs - old_log_probs).exp()
        penalty = (old_log_probs - log_probs).mean()
        loss = -(ratio * advantage).mean() + 0.05 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(rollout, reward.mean().item())
