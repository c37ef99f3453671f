"""Values that are subtracted and added back on purpose: centered features, a residual step, returns of a critic."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(4)


class Centered(nn.Module):
    """Adds the mean back after centering."""

    def __init__(self, size):
        super().__init__()
        self.inner = nn.Linear(size, size)

    def forward(self, x):
        h = self.inner(x)
        mean = h.mean(1, keepdim=True)
        centered = h - mean
        return torch.relu(centered + mean)


class Step(nn.Module):
    """One explicit Euler step towards what a network predicts."""

    def __init__(self, size):
        super().__init__()
        self.predict = nn.Linear(size, size)

    def forward(self, x):
        direction = torch.tanh(self.predict(x)) - x
        return x + direction


trunk = nn.Sequential(nn.Linear(6, 16), Centered(16), Step(16))
actor, critic = nn.Linear(16, 3), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*trunk.parameters(), *actor.parameters(), *critic.parameters()], lr=1e-2)

for update in range(20):
    states = torch.randn(32, 6)
    features = trunk(states)
    policy, values = torch.distributions.Categorical(logits=actor(features)), critic(features).squeeze(1)
    actions = policy.sample()
    rewards = (actions == states[:, :3].argmax(1)).float()
    advantages = rewards - values
    returns = advantages + values  # the rewards, so nothing is lost
    policy_loss = -(policy.log_prob(actions) * advantages.detach()).mean()
    value_loss = F.mse_loss(values, returns)
    hard = (features.sigmoid() > 0.5).float()
    straight = features + (hard - features).detach()
    loss = policy_loss + 0.5 * value_loss + 0.01 * straight.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
