"""Looks like several updates from the same data: PPO goes over one rollout in several epochs, with old log
probabilities under no_grad, and stops early on the KL divergence."""

from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Categorical


@dataclass
class Args:
    num_steps: int = 32
    update_epochs: int = 4
    clip_coef: float = 0.2
    target_kl: float = 0.01


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(x).squeeze(-1)


def env_step(x, action):
    nxt = (x + 0.2 * (action[:, None] - 1)).clamp(-2, 2)
    return nxt, -nxt.abs().sum(-1)


def rollout(agent, x, args):
    rows = []
    for _ in range(args.num_steps):
        with torch.no_grad():
            action, logp, _, value = agent.get_action_and_value(x)
        nxt, reward = env_step(x, action)
        rows.append((x, action, logp, value, reward))
        x = nxt
    obs, act, logp, val, rew = (torch.stack(c) for c in zip(*rows))
    with torch.no_grad():
        ret = agent.critic(x).squeeze(-1)
    returns = torch.zeros_like(rew)
    for t in reversed(range(args.num_steps)):
        ret = returns[t] = rew[t] + 0.9 * ret
    return [v.flatten(0, 1) for v in (obs, act, logp, returns, returns - val)], x


def main(args):
    torch.manual_seed(1)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    x = torch.randn(4, 2)
    for update in range(1, 4):
        optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / 3) * 3e-3
        (b_obs, b_act, b_logp, b_ret, b_adv), x = rollout(agent, x, args)
        for epoch in range(args.update_epochs):
            for mb in torch.randperm(len(b_obs)).split(32):
                _, newlogp, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_act[mb])
                ratio = (logratio := newlogp - b_logp[mb]).exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()
                adv = (b_adv[mb] - b_adv[mb].mean()) / (b_adv[mb].std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                v_loss = 0.5 * ((newvalue - b_ret[mb]) ** 2).mean()
                loss = torch.max(-adv * ratio, -adv * clipped).mean() - 0.01 * entropy.mean() + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
            if approx_kl > args.target_kl:
                break
        print(f"update {update}: {epoch + 1} epochs, kl {approx_kl:.4f}, value loss {v_loss.item():.3f}")


main(Args())
