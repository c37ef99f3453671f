"""Looks like a scalar without a mean and a parameter that no gradient reaches: episodes are summed and
divided by their number once, and the baseline is a running average kept by hand."""

import torch
from torch import nn


def bandit_reward(context, action):
    return (action == (context.sum(-1) > 0).long()).float() + 0.1 * torch.randn(len(action))


class PolicyGradient:
    def __init__(self, n_features, n_actions, lr=0.1):
        self.policy = nn.Linear(n_features, n_actions)
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=lr)
        self.baseline = 0.0

    def act(self, context):
        dist = torch.distributions.Categorical(logits=self.policy(context))
        action = dist.sample()
        return action, dist.log_prob(action), dist.entropy()

    def update(self, log_probs, rewards, entropies):
        n_episodes = len(rewards)
        self.optimizer.zero_grad()
        for logp, r, h in zip(log_probs, rewards, entropies):
            objective = (logp * (r - self.baseline)).mean() + 0.01 * h.mean()
            (-objective / n_episodes).backward()
        self.optimizer.step()
        self.baseline = 0.9 * self.baseline + 0.1 * torch.cat(rewards).mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    learner = PolicyGradient(5, 2)
    for it in range(10):
        log_probs, rewards, entropies = [], [], []
        for _ in range(4):
            context = torch.randn(16, 5)
            action, logp, entropy = learner.act(context)
            log_probs.append(logp)
            rewards.append(bandit_reward(context, action))
            entropies.append(entropy)
        learner.update(log_probs, rewards, entropies)
    print(f"mean reward {torch.cat(rewards).mean():.3f}, baseline {learner.baseline:.3f}")
