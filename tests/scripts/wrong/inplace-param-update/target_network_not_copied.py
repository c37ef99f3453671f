"""The target network is the network itself: lerp_ towards itself does nothing, and the target moves at every step."""

import torch
from torch import nn


class Agent:
    def __init__(self, states, actions):
        self.q = nn.Sequential(nn.Linear(states, 24), nn.ReLU(), nn.Linear(24, actions))
        self.q_target = self.q  # expect: inplace-param-update
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-3)

    def learn(self, s, a, r, s2):
        with torch.no_grad():
            target = r + 0.9 * self.q_target(s2).max(1).values
        loss = nn.functional.smooth_l1_loss(self.q(s).gather(1, a[:, None]).squeeze(1), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for old, new in zip(self.q_target.parameters(), self.q.parameters()):
                old.lerp_(new, 0.01)
        return loss.item()


torch.manual_seed(0)
agent = Agent(4, 2)
for step in range(10):
    s, a = torch.randn(32, 4), torch.randint(0, 2, (32,))
    loss = agent.learn(s, a, s[:, 0] * a, s + 0.1 * torch.randn(32, 4))
print(loss)
