"""The actor's gradients are cleared twice and the critic's not at all: the critic's steps are given up to 25
times the gradient, and its weights go 5.6 times as far.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

torch.manual_seed(31)


class Track:
    """A cart that is to stay at the origin."""

    def reset(self):
        self.state = torch.empty(2).uniform_(-1, 1)
        return self.state.clone()

    def step(self, force):
        x, v = self.state.tolist()
        v = 0.95 * v + 0.1 * max(-1.0, min(1.0, force))
        self.state = torch.tensor([x + 0.1 * v, v])
        return self.state.clone(), -(x**2 + 0.1 * v**2)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        self.log_std = nn.Parameter(torch.full((1,), -0.5))

    def forward(self, s):
        return Normal(self.net(s), self.log_std.exp())


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, s):
        return super().forward(s).squeeze(-1)


def collect(env, actor, horizon=24):
    states, actions, rewards = [], [], []
    s = env.reset()
    for _ in range(horizon):
        with torch.no_grad():
            a = actor(s).sample()
        states.append(s)
        actions.append(a)
        s, r = env.step(a.item())
        rewards.append(r)
    returns, g = [], 0.0
    for r in reversed(rewards):
        g = r + 0.9 * g
        returns.append(g)
    return torch.stack(states), torch.stack(actions), torch.tensor(returns[::-1])


def update(actor, critic, actor_opt, critic_opt, batch):
    states, actions, returns = batch
    values = critic(states)

    advantage = (returns - values).detach()
    policy_loss = -(actor(states).log_prob(actions).squeeze(-1) * advantage).mean()
    actor_opt.zero_grad()
    policy_loss.backward()
    actor_opt.step()

    value_loss = F.mse_loss(values, returns)
    actor_opt.zero_grad()  # expect: missing-zero-grad
    value_loss.backward()
    critic_opt.step()
    return policy_loss.item(), value_loss.item()


env, actor, critic = Track(), Actor(), Critic()
actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-2)
critic_opt = torch.optim.SGD(critic.parameters(), lr=5e-2)
for it in range(6):
    pl, vl = update(actor, critic, actor_opt, critic_opt, collect(env, actor))
    print(f"iteration {it}: policy {pl:+.4f} value {vl:.4f}")
