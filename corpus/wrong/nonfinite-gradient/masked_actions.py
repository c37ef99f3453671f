"""The entropy bonus takes the log of action probabilities that the action mask has made exactly 0, so the loss and all policy gradients become NaN."""

import argparse

import torch
from torch import nn


class WallWalk:
    """Walk along a strip; at the ends some moves are illegal."""

    SIZE, GOAL = 7, 6

    def reset(self):
        self.pos, self.t = 1, 0
        return self.observe()

    def observe(self):
        obs = torch.zeros(self.SIZE)
        obs[self.pos] = 1.0
        legal = torch.ones(3)  # left, stay, right
        if self.pos == 0:
            legal[0] = 0.0
        if self.pos == self.SIZE - 1:
            legal[2] = 0.0
        return obs, legal

    def step(self, action):
        self.pos += action - 1
        self.t += 1
        reward = 1.0 if self.pos == self.GOAL else -0.05
        return self.observe(), reward, self.pos == self.GOAL or self.t >= 15


class Policy(nn.Module):
    def __init__(self, n_obs=7, n_act=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_obs, 16), nn.Tanh(), nn.Linear(16, n_act))

    def forward(self, obs, legal):
        p = self.net(obs).softmax(-1) * legal
        return p / p.sum(-1, keepdim=True)


def entropy(p):
    return -(p * p.log()).sum(-1)  # expect: nonfinite-gradient


def rollout(env, policy, random_prob=0.2):
    obs_list, legal_list, actions, rewards = [], [], [], []
    (obs, legal), done = env.reset(), False
    while not done:
        with torch.no_grad():
            p = torch.nan_to_num(policy(obs, legal), nan=0.0) + random_prob * legal
        action = torch.multinomial(p, 1).item()
        obs_list.append(obs)
        legal_list.append(legal)
        actions.append(action)
        (obs, legal), reward, done = env.step(action)
        rewards.append(reward)
    return torch.stack(obs_list), torch.stack(legal_list), torch.tensor(actions), rewards


def returns(rewards, gamma):
    out, g = [], 0.0
    for r in reversed(rewards):
        g = r + gamma * g
        out.insert(0, g)
    return torch.tensor(out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--episodes", type=int, default=8)
    ap.add_argument("--gamma", type=float, default=0.95)
    ap.add_argument("--entropy-coef", type=float, default=0.01)
    args = ap.parse_args()
    torch.manual_seed(10)
    torch.set_num_threads(1)
    env, policy = WallWalk(), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        totals = []
        for _ in range(args.episodes):
            obs, legal, actions, rewards = rollout(env, policy)
            probs = policy(obs, legal)
            log_p = probs.gather(1, actions[:, None]).squeeze(1).log()
            g = returns(rewards, args.gamma)
            loss = -(log_p * (g - g.mean())).mean() - args.entropy_coef * entropy(probs).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            totals.append(sum(rewards))
        print(f"epoch {epoch} mean return {sum(totals) / len(totals):.3f} last loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
