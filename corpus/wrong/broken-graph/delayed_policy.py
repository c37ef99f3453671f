"""Every second update trains the policy, on actions that have left its graph: it never gets a gradient."""

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

    def update(self, step, state, action, reward):
        value_loss = F.mse_loss(self.value(torch.cat([state, action], 1)).squeeze(1), reward)
        self.value_optimizer.zero_grad()
        value_loss.backward()
        self.value_optimizer.step()
        if step % 2:
            proposed = self.policy(state).detach().requires_grad_()  # expect: broken-graph
            policy_loss = -self.value(torch.cat([state, proposed], 1)).mean()
            self.policy_optimizer.zero_grad()
            policy_loss.backward()
            self.policy_optimizer.step()
        return value_loss.item()


agent = Agent()
for step in range(24):
    state, action = torch.randn(32, 3), torch.rand(32, 1) * 2 - 1
    loss = agent.update(step, state, action, -(state[:, 0] - action[:, 0]).abs())
print(loss)
