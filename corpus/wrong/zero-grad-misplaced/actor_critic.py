"""The critic's gradients are cleared after its backward and before its step, so the value network stays as it was
initialised."""

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Corridor:
    """Walk to the right end of a corridor of 6 cells."""

    def reset(self):
        self.pos, self.t = 2, 0
        return self.obs()

    def obs(self):
        return torch.eye(6)[self.pos]

    def step(self, action):
        self.pos = max(0, min(5, self.pos + (1 if action == 1 else -1)))
        self.t += 1
        return self.obs(), float(self.pos == 5) - 0.01, self.pos == 5 or self.t >= 15


torch.manual_seed(17)
env = Corridor()
actor = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
actor_optim = torch.optim.Adam(actor.parameters(), lr=0.02)
critic_optim = torch.optim.Adam(critic.parameters(), lr=0.02)
gamma = 0.97

returns_log = []
for episode in range(20):
    obs, done = env.reset(), False
    log_probs, values, rewards = [], [], []
    while not done:
        dist = Categorical(logits=actor(obs))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        values.append(critic(obs).squeeze(-1))
        obs, reward, done = env.step(action.item())
        rewards.append(reward)

    R, returns = 0.0, []
    for r in reversed(rewards):
        R = r + gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    values = torch.stack(values)
    advantage = returns - values.detach()

    actor_loss = -(torch.stack(log_probs) * advantage).mean()
    critic_loss = (returns - values).pow(2).mean()

    actor_optim.zero_grad()
    actor_loss.backward()
    critic_loss.backward()
    critic_optim.zero_grad()  # expect: zero-grad-misplaced
    actor_optim.step()
    critic_optim.step()
    returns_log.append(sum(rewards))

print("mean return first 10: %.2f, last 10: %.2f" % (sum(returns_log[:10]) / 10, sum(returns_log[10:]) / 10))
