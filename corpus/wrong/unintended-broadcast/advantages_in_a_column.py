"""A policy gradient in which the log-probabilities have the shape (N,) and the advantages of a replay table (N, 1): each
action is weighted by the mean advantage, so good and bad actions are reinforced alike."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def collect(n):
    state = torch.randn(n, 4)
    action = torch.distributions.Categorical(logits=policy(state)).sample()
    reward = (action == state[:, :3].argmax(1)).float()
    return torch.cat([state, action.unsqueeze(1), (reward - reward.mean()).unsqueeze(1)], dim=1).detach()


def policy_loss(log_prob, advantage):
    return -(log_prob * advantage).sum() / advantage.numel()  # expect: unintended-broadcast


for update in range(12):
    table = collect(40)
    picked = torch.distributions.Categorical(logits=policy(table[:, :4])).log_prob(table[:, 4])
    loss = policy_loss(picked, table[:, 5:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(update, f"{loss.item():.4f}")
