"""The agent evaluates its action without a graph, and the policy is trained by the entropy and a penalty alone."""

import torch
from torch import nn


class Agent:
    def __init__(self, state=4, action=2, tau=0.5):
        self.policy = nn.Sequential(nn.Linear(state, 32), nn.Tanh(), nn.Linear(32, action))
        self.critic = nn.Sequential(nn.Linear(state + action, 32), nn.ReLU(), nn.Linear(32, 1))
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self.weight = tau

    def train_critic(self, s, a, r):
        loss = nn.functional.mse_loss(self.critic(torch.cat([s, a], 1)).squeeze(1), r)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()

    def train_policy(self, s):
        action = self.policy(s)
        with torch.no_grad():  # expect: broken-graph
            score = self.critic(torch.cat([s, action], 1))
        cost = self.weight * action.pow(2).sum(1, keepdim=True)
        loss = torch.mean(cost - score)
        self.policy_optimizer.zero_grad()
        loss.backward()
        self.policy_optimizer.step()
        return loss.item()


torch.manual_seed(1)
agent = Agent()
for step in range(10):
    s, a = torch.randn(64, 4), torch.randn(64, 2)
    agent.train_critic(s, a, -(a - s[:, :2]).pow(2).sum(1))
    loss = agent.train_policy(s)
print(loss)
