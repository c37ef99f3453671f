"""Every rollout reloads the optimizer state saved before training, when it was still empty: Adam counts to 6 in
place of 36, and the weights end off by a fifth of the way that they go."""

import copy

import torch
import torch.nn as nn
from torch.distributions import Categorical


class PPO:
    def __init__(self, obs_dim, n_actions, lr=3e-3, clip=0.2, epochs=2, minibatch=32):
        self.pi = nn.Sequential(nn.Linear(obs_dim, 32), nn.Tanh(), nn.Linear(32, n_actions))
        self.optimizer = torch.optim.Adam(self.pi.parameters(), lr=lr, eps=1e-5)
        self.defaults = copy.deepcopy(self.optimizer.state_dict())
        self.clip, self.epochs, self.minibatch = clip, epochs, minibatch

    def set_lr(self, frac):
        self.optimizer.load_state_dict(self.defaults)  # expect: optimizer-state-reset
        for group in self.optimizer.param_groups:
            group["lr"] *= frac

    def update(self, obs, actions, old_logp, adv):
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        for _ in range(self.epochs):
            for mb in torch.randperm(len(obs)).split(self.minibatch):
                logp = Categorical(logits=self.pi(obs[mb])).log_prob(actions[mb])
                ratio = (logp - old_logp[mb]).exp()
                clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
                loss = -torch.min(ratio * adv[mb], clipped * adv[mb]).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


def contextual_bandit(pi, n):
    obs = torch.randn(n, 6)
    with torch.no_grad():
        dist = Categorical(logits=pi(obs))
        actions = dist.sample()
        logp = dist.log_prob(actions)
    rewards = (actions == (obs[:, :3].argmax(1))).float()
    return obs, actions, logp, rewards


def main(n_updates=6):
    torch.manual_seed(20)
    agent = PPO(6, 3)
    for update in range(n_updates):
        agent.set_lr(1.0 - update / n_updates)
        obs, actions, logp, rewards = contextual_bandit(agent.pi, 96)
        agent.update(obs, actions, logp, rewards)
        print(f"update {update} mean_reward {rewards.mean().item():.3f}")


if __name__ == "__main__":
    main()
