"""The critic returns (64, 1), the returns are (64,): under no_grad the advantage becomes (64, 64), so that each action
is weighed by the mean over all baselines, and the critic's value of its own state is of no use."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
policy_opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-2)
best = torch.randn(4, 3)

for iteration in range(15):
    obs = torch.randn(64, 4)
    dist = Categorical(logits=policy(obs))
    actions = dist.sample()
    returns = (obs @ best).gather(1, actions[:, None]).squeeze(1) + 3 * obs[:, 0]

    with torch.no_grad():
        advantage = returns - critic(obs)  # expect: unintended-broadcast
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -(dist.log_prob(actions) * advantage).mean()
    policy_opt.zero_grad()
    policy_loss.backward()
    policy_opt.step()

    critic_loss = (critic(obs).squeeze(1) - returns).square().mean()
    critic_opt.zero_grad()
    critic_loss.backward()
    critic_opt.step()
    print(f"iteration {iteration}: return {returns.mean():.3f}")
