"""The critic's optimizer holds the shared trunk, but the critic sees it detached. Only the policy's loss reaches it."""

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.trunk = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.policy, self.critic = nn.Linear(16, 2), nn.Linear(16, 1)
        both = list(self.trunk.parameters()) + list(self.critic.parameters())
        self.opt_critic = torch.optim.Adam(both, lr=1e-2)  # expect: ineffective-step
        self.opt_policy = torch.optim.Adam(self.policy.parameters(), lr=1e-2)

    def learn(self, state, reward_of):
        h = self.trunk(state)
        value = self.critic(h.detach()).squeeze(1)
        dist = torch.distributions.Categorical(logits=self.policy(h))
        action = dist.sample()
        reward = reward_of(state, action)

        self.opt_critic.zero_grad()
        critic_loss = (value - reward).square().mean()
        critic_loss.backward()
        self.opt_critic.step()

        self.opt_policy.zero_grad()
        policy_loss = -(dist.log_prob(action) * (reward - value.detach())).mean()
        policy_loss.backward()
        self.opt_policy.step()
        return reward.mean().item()


torch.manual_seed(0)
agent = Agent()
for _ in range(30):
    mean = agent.learn(torch.randn(32, 4), lambda s, a: ((s[:, 0] > 0) == a.bool()).float())
print(f"{mean:.3f}")
