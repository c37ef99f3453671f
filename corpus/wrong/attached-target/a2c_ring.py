"""The advantage keeps its graph in the policy loss, so the critic is also pushed to make the sampled actions look worse
or better than they are."""

from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Categorical


@dataclass
class A2CConfig:
    n_envs: int = 16
    horizon: int = 5
    updates: int = 12
    epochs: int = 2
    gamma: float = 0.9
    lr: float = 0.01
    entropy: float = 0.01


class RingWorld:
    """States on a ring of 8; the reward is at state 0."""

    def __init__(self, n):
        self.s = torch.randint(1, 8, (n,))

    def obs(self):
        return nn.functional.one_hot(self.s, 8).float()

    def step(self, a):
        self.s = (self.s + 2 * a - 1) % 8
        r = (self.s == 0).float()
        self.s = torch.where(r > 0, torch.randint(1, 8, self.s.shape), self.s)
        return r


def train(cfg):
    torch.manual_seed(2)
    env = RingWorld(cfg.n_envs)
    actor = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2))
    critic = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
    opt = torch.optim.RMSprop([*actor.parameters(), *critic.parameters()], lr=cfg.lr)
    for epoch in range(cfg.epochs):
        rewards_seen = []
        for _ in range(cfg.updates):
            logps, values, rewards, ents = [], [], [], []
            for _ in range(cfg.horizon):
                obs = env.obs()
                dist = Categorical(logits=actor(obs))
                a = dist.sample()
                logps.append(dist.log_prob(a))
                ents.append(dist.entropy())
                values.append(critic(obs).squeeze(-1))
                rewards.append(env.step(a))
            with torch.no_grad():
                ret = critic(env.obs()).squeeze(-1)
            targets = []
            for r in reversed(rewards):
                ret = r + cfg.gamma * ret * (1 - r)
                targets.insert(0, ret)
            adv = torch.stack(targets) - torch.stack(values)
            policy_loss = -(torch.stack(logps) * adv).mean()  # expect: attached-target
            value_loss = adv.pow(2).mean()
            loss = policy_loss + 0.5 * value_loss - cfg.entropy * torch.stack(ents).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            rewards_seen.append(torch.stack(rewards).mean().item())
        print(
            f"epoch {epoch}: reward/step {sum(rewards_seen) / len(rewards_seen):.3f}, value loss {value_loss.item():.4f}"
        )


train(A2CConfig())
