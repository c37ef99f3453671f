"""A rollout returns the critic's values as numbers, and the update makes a tensor of them."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
actor, critic = nn.Linear(16, 2), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*body.parameters(), *actor.parameters(), *critic.parameters()], lr=1e-2)


def rollout():
    scores, values, rewards = [], [], []
    for state in torch.randn(12, 4):
        hidden = body(state)
        choice = torch.distributions.Categorical(logits=actor(hidden))
        action = choice.sample()
        scores.append(choice.log_prob(action))
        values.append(critic(hidden).squeeze().item())  # expect: broken-graph
        rewards.append(float(action == (state[0] > 0)))
    return torch.stack(scores), values, torch.tensor(rewards)


def update(scores, values, rewards):
    values = torch.tensor(values)
    loss = F.mse_loss(values, rewards) - (scores * (rewards - values.detach())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for episode in range(16):
    update(*rollout())
