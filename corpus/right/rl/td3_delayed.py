"""The policy is updated only in every second call and the targets with it: the delay is part of the method."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1 = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1))
        self.q2 = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, s, a):
        x = torch.cat([s, a], -1)
        return self.q1(x), self.q2(x)

    def Q1(self, s, a):
        return self.q1(torch.cat([s, a], -1))


class TD3:
    def __init__(self, policy_freq=2):
        self.actor = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1), nn.Tanh())
        self.critic = Critic()
        self.actor_target = copy.deepcopy(self.actor)
        self.critic_target = copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-3)
        self.policy_freq, self.total_it = policy_freq, 0

    def train(self, s, a, r, s2):
        self.total_it += 1
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            a2 = (self.actor_target(s2) + noise).clamp(-1, 1)
            target = r + 0.95 * torch.min(*self.critic_target(s2, a2))
        q1, q2 = self.critic(s, a)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        if self.total_it % self.policy_freq == 0:
            actor_loss = -self.critic.Q1(s, self.actor(s)).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            for m, t in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
                for p, tp in zip(m.parameters(), t.parameters()):
                    tp.data.copy_(0.01 * p.data + 0.99 * tp.data)
        return critic_loss.item()


torch.manual_seed(0)
agent = TD3()
S, A = torch.randn(500, 3), torch.rand(500, 1) * 2 - 1
S2 = torch.cat([S[:, :1] + 0.2 * A, S[:, 1:]], 1)
R = -(S2[:, :1] - S[:, 1:2]).pow(2)
for epoch in range(2):
    for b in torch.randperm(500).split(50):
        loss = agent.train(S[b], A[b], R[b], S2[b])
    print(f"epoch {epoch}: critic loss {loss:.4f}")
