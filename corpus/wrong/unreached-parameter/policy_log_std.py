"""The policy samples with a fixed deviation of one, so its learned log_std never gets a gradient: the deviation
is 1.0 in place of the 0.61 it starts from, and the first return -106 in place of -69."""

import torch
from torch import nn
from torch.distributions import Normal


class GaussianPolicy(nn.Module):
    def __init__(self, obs_dim: int, act_dim: int, hidden: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mu = nn.Linear(hidden, act_dim)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def forward(self, obs: torch.Tensor) -> Normal:
        mu = self.mu(self.body(obs))
        return Normal(mu, torch.ones_like(mu))  # expect: unreached-parameter


class PointMass:
    """Push a point to the origin."""

    def __init__(self, n: int) -> None:
        self.n = n

    def reset(self) -> torch.Tensor:
        self.pos, self.vel = torch.randn(self.n, 2), torch.zeros(self.n, 2)
        return torch.cat([self.pos, self.vel], 1)

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.vel = 0.9 * self.vel + 0.1 * action.clamp(-2, 2)
        self.pos = self.pos + self.vel
        reward = -self.pos.square().sum(1) - 0.01 * action.square().sum(1)
        return torch.cat([self.pos, self.vel], 1), reward


def rollout(env: PointMass, policy: GaussianPolicy, horizon: int = 15):
    obs, log_probs, rewards = env.reset(), [], []
    for _ in range(horizon):
        dist = policy(obs)
        action = dist.sample()
        log_probs.append(dist.log_prob(action).sum(-1))
        obs, reward = env.step(action)
        rewards.append(reward)
    return torch.stack(log_probs), torch.stack(rewards)


def main() -> None:
    torch.manual_seed(3)
    env, policy = PointMass(24), GaussianPolicy(4, 2)
    optim = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for iteration in range(8):
        log_probs, rewards = rollout(env, policy)
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantage = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-8)
        loss = -(log_probs * advantage).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        print(f"iter {iteration} return {rewards.sum(0).mean():.2f}")


if __name__ == "__main__":
    main()
