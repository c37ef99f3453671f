"""An agent class draws the action by sample(), so the critic's value of it has no gradient for the actor."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.log_std = nn.Parameter(torch.zeros(2))
        self.critic = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))

    def act(self, s):
        dist = Normal(self.actor(s), self.log_std.exp())
        a = dist.sample()  # expect: broken-graph
        return a, dist.log_prob(a).sum(1), dist.entropy().sum(1)


agent = Agent()
actor_opt = torch.optim.Adam([*agent.actor.parameters(), agent.log_std], lr=1e-3)
critic_opt = torch.optim.Adam(agent.critic.parameters(), lr=1e-3)
for i in range(12):
    s = torch.randn(64, 4)
    a, logp, entropy = agent.act(s)
    reward = -(a - s[:, :2]).pow(2).sum(1).detach()
    closs = (agent.critic(torch.cat([s, a.detach()], 1)).squeeze(1) - reward).pow(2).mean()
    critic_opt.zero_grad()
    closs.backward()
    critic_opt.step()
    loss = (0.1 * logp - agent.critic(torch.cat([s, a], 1)).squeeze(1)).mean()
    actor_opt.zero_grad()
    loss.backward()
    actor_opt.step()
print(loss.item())
