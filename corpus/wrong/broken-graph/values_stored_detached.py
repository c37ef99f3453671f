"""Actor-critic on a bandit with contexts: the rollout stores detached values, and the critic's loss reads them."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
critic = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
policy_optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
arms = torch.randn(5, 3)


def rollout(steps):
    log_probs, values, rewards = [], [], []
    for _ in range(steps):
        context = torch.randn(8, 5)
        choice = Categorical(logits=policy(context))
        action = choice.sample()
        values.append(critic(context).squeeze(1).detach())  # expect: broken-graph
        log_probs.append(choice.log_prob(action))
        rewards.append((context @ arms).gather(1, action[:, None]).squeeze(1))
    return torch.stack(log_probs), torch.stack(values), torch.stack(rewards)


def losses(log_probs, values, rewards):
    with torch.no_grad():
        targets = rewards - rewards.mean() + rewards.mean()
    error = targets - values
    return -(error * log_probs).mean(), error.pow(2).mean()


for update in range(15):
    policy_loss, value_loss = losses(*rollout(4))
    policy_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss).backward()
    policy_optimizer.step()
    critic_optimizer.step()
