"""The rewards' standard deviation is taken per episode; an episode of one step has none (NaN), and the
policy is NaN from that update on."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 24)
        self.affine2 = nn.Linear(24, 2)

    def forward(self, x):
        return self.affine2(F.relu(self.affine1(x)))


def rollout(policy):
    """Keep a drifting value inside (-1, 1); at most 12 steps."""
    value, log_probs, rewards = torch.randn(1).item() * 0.7, [], []
    for t in range(12):
        logits = policy(torch.tensor([value, t / 12]))
        gumbel = -torch.log(-torch.log(torch.rand(2)))
        action = (logits + gumbel).argmax().item()
        log_probs.append(F.log_softmax(logits, -1)[action])
        value += (0.3 if action else -0.3) + 0.2 * torch.randn(1).item()
        rewards.append(1.0)
        if abs(value) > 1:
            break
    return torch.stack(log_probs), rewards


def discounted(rewards, gamma=0.95):
    out, R = [], 0.0
    for r in rewards[::-1]:
        R = r + gamma * R
        out.append(R)
    return torch.tensor(out[::-1])


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
lengths = []
for epoch in range(2):
    for episode in range(15):
        log_probs, rewards = rollout(policy)
        returns = discounted(rewards)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)  # expect: nonfinite-gradient
        loss = -(log_probs * returns).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lengths.append(len(rewards))
    print(f"epoch {epoch} mean length {sum(lengths[-15:]) / 15:.2f} loss {loss.item():.3f}")
