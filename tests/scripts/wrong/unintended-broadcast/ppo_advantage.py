"""PPO: `values` is (48, 1) and `returns` is (48,), so the detached advantage is (48, 48), and so are both surrogates."""

import torch
from torch import nn
from torch.distributions import Normal


class Agent(nn.Module):
    def __init__(self, n_obs: int, n_actions: int):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(n_obs, 32), nn.Tanh(), nn.Linear(32, n_actions))
        self.critic = nn.Sequential(nn.Linear(n_obs, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.zeros(n_actions))

    def forward(self, obs):
        return Normal(self.actor(obs), self.log_std.exp()), self.critic(obs)


def advantages_of(returns, values):
    advantages = (returns - values).detach()  # expect: unintended-broadcast
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def update(agent, optimizer, obs, actions, old_log_prob, returns, clip=0.2):
    for _ in range(3):
        dist, values = agent(obs)
        log_prob = dist.log_prob(actions).sum(-1)
        advantages = advantages_of(returns, values)
        ratio = (log_prob - old_log_prob).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        value_loss = (values.squeeze(-1) - returns).pow(2).mean()
        loss = -surrogate.mean() + 0.5 * value_loss - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
    return value_loss.item()


torch.manual_seed(1)
agent = Agent(3, 2)
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
target = torch.randn(3, 2)
for rollout in range(4):
    obs = torch.randn(48, 3)
    with torch.no_grad():
        dist, _ = agent(obs)
        actions = dist.sample()
        old_log_prob = dist.log_prob(actions).sum(-1)
    returns = -(actions - obs @ target).square().sum(-1) + 2 * obs[:, 0]
    value_loss = update(agent, optimizer, obs, actions, old_log_prob, returns)
    print(f"rollout {rollout}: return {returns.mean():.3f} value loss {value_loss:.3f}")
