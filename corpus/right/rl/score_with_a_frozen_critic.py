"""A Gaussian policy learns from the score of its sampled actions, weighted by a critic that is frozen meanwhile."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
before = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
before.load_state_dict(policy.state_dict())
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
policy_optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
for step in range(20):
    state = torch.randn(32, 3)
    dist = Normal(policy(state), 0.5)
    action = dist.sample()
    reward = -(action - state[:, :1]).square()
    critic_optimizer.zero_grad()
    error = (critic(torch.cat([state, action], 1)) - reward).square().mean()
    error.backward()
    critic_optimizer.step()

    critic.requires_grad_(False)
    advantage = critic(torch.cat([state, action], 1)) - reward.mean()
    old = Normal(before(state), 0.5).log_prob(action).detach()
    drift = (dist.log_prob(action) - old).mean()
    loss = -(dist.log_prob(action) * advantage).mean() - 0.01 * dist.entropy().mean() + 0.01 * drift
    policy_optimizer.zero_grad()
    loss.backward()
    policy_optimizer.step()
    critic.requires_grad_(True)
    # Once more in one line, with the value of the network itself as the weight
    critic.requires_grad_(False)
    again = Normal(policy(state), 0.5)
    drawn = again.sample()
    total = (-(again.log_prob(drawn) * critic(torch.cat([state, drawn], 1))) - 0.01 * again.entropy()).mean()
    policy_optimizer.zero_grad()
    total.backward()
    policy_optimizer.step()
    critic.requires_grad_(True)
print(f"{loss.item():.3f}")
