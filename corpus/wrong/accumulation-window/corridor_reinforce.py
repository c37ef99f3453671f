"""REINFORCE updates when the episode's number, which starts at 0, is a multiple of the batch: the first
update has one episode at a quarter of its weight, the last three of the 16 have none.
"""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    """Walk to the right end within a number of moves."""

    def __init__(self, length=6, limit=12):
        self.length, self.limit = length, limit

    def reset(self):
        self.pos, self.t = 0, 0
        return self._obs()

    def _obs(self):
        obs = torch.zeros(self.length)
        obs[self.pos] = 1.0
        return obs

    def step(self, action):
        self.t += 1
        self.pos = min(max(self.pos + (1 if action == 1 else -1), 0), self.length - 1)
        done = self.pos == self.length - 1 or self.t >= self.limit
        reward = 1.0 if self.pos == self.length - 1 else -0.1
        return self._obs(), reward, done


def rollout(env, policy):
    log_probs, rewards = [], []
    obs, done = env.reset(), False
    while not done:
        dist = Categorical(logits=policy(obs))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        obs, reward, done = env.step(action.item())
        rewards.append(reward)
    return log_probs, rewards


def discounted(rewards, gamma):
    returns, g = [], 0.0
    for r in reversed(rewards):
        g = r + gamma * g
        returns.insert(0, g)
    return torch.tensor(returns)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--batch-episodes", type=int, default=4)
    parser.add_argument("--gamma", type=float, default=0.97)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    env = Corridor()
    policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-3)
    lengths = []
    for episode in range(args.episodes):
        log_probs, rewards = rollout(env, policy)
        returns = discounted(rewards, args.gamma)
        loss = -(torch.stack(log_probs) * returns).sum()
        (loss / args.batch_episodes).backward()
        lengths.append(len(rewards))

        # update on the mean over several episodes, one is far too noisy
        if episode % args.batch_episodes == 0:  # expect: accumulation-window
            optimizer.step()
            optimizer.zero_grad()
    print(f"mean episode length {sum(lengths) / len(lengths):.1f}")


if __name__ == "__main__":
    main()
