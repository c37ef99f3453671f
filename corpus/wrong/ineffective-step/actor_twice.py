"""The critic's optimizer is given the actor's parameters."""

import torch
from torch import nn
import torch.nn.functional as F


class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 1))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)  # expect: ineffective-step

    def update(self, s, a, ret):
        v = self.critic(s).squeeze(-1)
        critic_loss = F.mse_loss(v, ret)
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        logp = F.log_softmax(self.actor(s), -1).gather(1, a[:, None]).squeeze(1)
        actor_loss = -(logp * (ret - v.detach())).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        return actor_loss.item(), critic_loss.item()


torch.manual_seed(0)
agent = Agent()
for it in range(20):
    s = torch.randn(16, 4)
    print(agent.update(s, torch.randint(2, (16,)), s.sum(1)))
