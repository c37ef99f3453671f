"""The critic steps after the actor's loss was back-propagated through it, so the critic also raises its own values."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Actor(nn.Module):
    def __init__(self, n_state, n_action):
        super().__init__()
        self.l1 = nn.Linear(n_state, 24)
        self.l2 = nn.Linear(24, n_action)

    def forward(self, s):
        return torch.tanh(self.l2(F.relu(self.l1(s))))


class Critic(nn.Module):
    def __init__(self, n_state, n_action):
        super().__init__()
        self.l1 = nn.Linear(n_state + n_action, 32)
        self.l2 = nn.Linear(32, 1)

    def forward(self, s, a):
        return self.l2(F.relu(self.l1(torch.cat([s, a], dim=-1)))).squeeze(-1)


class Agent:
    def __init__(self, lr=1e-2):
        self.actor, self.critic = Actor(3, 2), Critic(3, 2)
        self.critic_target = Critic(3, 2)
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.actor_optim = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.critic_optim = torch.optim.Adam(self.critic.parameters(), lr=lr)

    def update(self, s, a, r, s2, done):
        with torch.no_grad():
            y = r + 0.95 * (1 - done) * self.critic_target(s2, self.actor(s2))
        value_loss = F.mse_loss(self.critic(s, a), y)
        self.critic_optim.zero_grad()
        value_loss.backward()

        policy_loss = -self.critic(s, self.actor(s)).mean()
        self.actor_optim.zero_grad()
        policy_loss.backward()

        self.actor_optim.step()
        self.critic_optim.step()  # expect: cross-loss-leak
        for p, q in zip(self.critic_target.parameters(), self.critic.parameters()):
            p.data.mul_(0.95).add_(q.data, alpha=0.05)
        return value_loss.item(), policy_loss.item()


torch.manual_seed(5)
agent = Agent()
for it in range(24):
    s, a = torch.randn(32, 3), torch.rand(32, 2) * 2 - 1
    r = -(a - s[:, :2].tanh()).square().sum(-1)
    v, p = agent.update(s, a, r, s + 0.1 * torch.randn(32, 3), (torch.rand(32) < 0.1).float())
    if it % 8 == 7:
        print(f"update {it + 1} value loss {v:.3f} policy loss {p:.3f}")
