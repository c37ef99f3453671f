"""Actor and critic share a trunk that stands in both of their optimizers; after one joint backward both step, so the
trunk moves twice along the same gradient."""

import itertools

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Agent:
    def __init__(self, n_obs, n_act, lr_actor=5e-3, lr_critic=1e-2):
        self.trunk = nn.Sequential(nn.Linear(n_obs, 32), nn.Tanh())
        self.actor = nn.Linear(32, n_act)
        self.critic = nn.Linear(32, 1)
        self.actor_opt = torch.optim.Adam(
            itertools.chain(self.trunk.parameters(), self.actor.parameters()),
            lr=lr_actor,  # expect: param-in-multiple-optimizers
        )
        self.critic_opt = torch.optim.Adam(
            itertools.chain(self.trunk.parameters(), self.critic.parameters()),
            lr=lr_critic,  # expect: param-in-multiple-optimizers
        )

    def act(self, obs):
        h = self.trunk(obs)
        dist = Categorical(logits=self.actor(h))
        return dist, self.critic(h).squeeze(-1)

    def learn(self, dist, value, action, reward):
        advantage = reward - value
        actor_loss = -(dist.log_prob(action) * advantage.detach()).mean()
        critic_loss = advantage.pow(2).mean()
        entropy = dist.entropy().mean()
        self.actor_opt.zero_grad()
        self.critic_opt.zero_grad()
        (actor_loss + 0.5 * critic_loss - 0.01 * entropy).backward()
        self.actor_opt.step()
        self.critic_opt.step()


def contextual_bandit(n, weights):
    obs = torch.randn(n, weights.size(0))
    return obs, (obs @ weights).argmax(1)


torch.manual_seed(25)
weights = torch.randn(5, 3)
agent = Agent(5, 3)
for epoch in range(3):
    gained = 0.0
    for _ in range(10):
        obs, best = contextual_bandit(64, weights)
        dist, value = agent.act(obs)
        action = dist.sample()
        reward = (action == best).float()
        agent.learn(dist, value, action, reward)
        gained += reward.mean().item() / 10
    print(f"epoch {epoch} mean reward {gained:.3f}")
