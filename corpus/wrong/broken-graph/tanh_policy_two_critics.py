"""A squashed policy draws its action with sample(); both critics are frozen while the policy learns."""

import torch
from torch import nn
from torch.distributions import Independent, Normal

torch.manual_seed(0)


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, outputs))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(3, 4)

    def act(self, obs):
        mean, log_std = self.net(obs).chunk(2, -1)
        dist = Independent(Normal(mean, log_std.clamp(-4, 1).exp()), 1)
        raw = dist.sample()  # expect: broken-graph
        action = torch.tanh(raw)
        logp = dist.log_prob(raw) - torch.log(1 - action.square() + 1e-6).sum(-1)
        return action, logp


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(5, 1)

    def forward(self, obs, action):
        return self.net(torch.cat([obs, action], -1)).squeeze(-1)


class Agent:
    def __init__(self):
        self.policy, self.q1, self.q2 = Policy(), Critic(), Critic()
        self.critics = [*self.q1.parameters(), *self.q2.parameters()]
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.Adam(self.critics, lr=1e-2)

    def update(self, obs):
        with torch.no_grad():
            action, _ = self.policy.act(obs)
        reward = -(action - obs[:, :2]).square().sum(-1)
        errors = (self.q1(obs, action) - reward).square() + (self.q2(obs, action) - reward).square()
        self.critic_optimizer.zero_grad()
        errors.mean().backward()
        self.critic_optimizer.step()

        for p in self.critics:
            p.requires_grad = False
        action, logp = self.policy.act(obs)
        q = torch.min(self.q1(obs, action), self.q2(obs, action))
        loss = (0.1 * logp - q).mean()
        self.policy_optimizer.zero_grad()
        loss.backward()
        self.policy_optimizer.step()
        for p in self.critics:
            p.requires_grad = True
        return loss.item()


agent = Agent()
for step in range(12):
    value = agent.update(torch.randn(32, 3))
print(f"{value:.3f}")
