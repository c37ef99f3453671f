"""The critic is cleared after its step: what the actor's loss leaves in it is used by the critic's next step."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, s):
        mu, ls = self.net(s).chunk(2, -1)
        dist = Normal(mu, ls.clamp(-5, 2).exp())
        u = dist.rsample()
        a = torch.tanh(u)
        return a, (dist.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1, keepdim=True)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1 = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        self.q2 = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, s, a):
        x = torch.cat([s, a], -1)
        return self.q1(x), self.q2(x)


actor, critic = Actor(), Critic()
critic_target = copy.deepcopy(critic).requires_grad_(False)
actor_opt = torch.optim.Adam(actor.parameters(), 3e-4)
critic_opt = torch.optim.Adam(critic.parameters(), 3e-4)
log_alpha = torch.zeros(1, requires_grad=True)
alpha_opt = torch.optim.Adam([log_alpha], 3e-4)

for step in range(8):
    s, s2, r = torch.randn(32, 3), torch.randn(32, 3), torch.randn(32, 1)
    a = torch.tanh(torch.randn(32, 1))
    alpha = log_alpha.exp().detach()
    with torch.no_grad():
        a2, lp2 = actor(s2)
        backup = r + 0.99 * (torch.min(*critic_target(s2, a2)) - alpha * lp2)
    q1, q2 = critic(s, a)
    critic_loss = F.mse_loss(q1, backup) + F.mse_loss(q2, backup)
    critic_loss.backward()
    critic_opt.step()
    critic_opt.zero_grad()  # expect: cross-loss-leak

    new_a, lp = actor(s)
    actor_loss = (alpha * lp - torch.min(*critic(s, new_a))).mean()
    actor_opt.zero_grad()
    actor_loss.backward()
    actor_opt.step()

    alpha_loss = -(log_alpha * (lp.detach() - 1)).mean()
    alpha_opt.zero_grad()
    alpha_loss.backward()
    alpha_opt.step()
    with torch.no_grad():
        for p, tp in zip(critic.parameters(), critic_target.parameters()):
            tp.lerp_(p, 0.005)
