"""Every second update trains the policy; the actions that it takes in the environment are detached."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh())
        self.value = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), lr=1e-2)

    def act(self, state):
        return (self.policy(state) + 0.1 * torch.randn(len(state), 1)).detach()

    def update(self, step, state, action, reward):
        value_loss = F.mse_loss(self.value(torch.cat([state, action], 1)).squeeze(1), reward)
        self.value_optimizer.zero_grad()
        value_loss.backward()
        self.value_optimizer.step()
        if step % 2:
            policy_loss = -self.value(torch.cat([state, self.policy(state)], 1)).mean()
            self.policy_optimizer.zero_grad()
            policy_loss.backward()
            self.policy_optimizer.step()
        return value_loss.item()


agent = Agent()
for step in range(24):
    state = torch.randn(32, 3)
    action = agent.act(state)
    loss = agent.update(step, state, action, -(state[:, 0] - action[:, 0]).abs())
print(loss)
