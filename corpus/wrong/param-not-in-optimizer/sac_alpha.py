"""The temperature of the policy's entropy has a loss of its own and gets gradients, but it is not given to the
optimizer, so it stays at 1."""

import torch
import torch.nn as nn

torch.manual_seed(20)


class GaussianPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, s):
        dist = torch.distributions.Normal(self.mean(s), self.log_std.exp())
        a = dist.rsample()
        return a, dist.log_prob(a).squeeze(-1)


policy = GaussianPolicy()
log_alpha = torch.zeros(1, requires_grad=True)
target_entropy = -1.0
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)  # expect: param-not-in-optimizer


def q_value(s, a):
    """A known bandit: the best action is the product of the two state features."""
    return -4 * (a.squeeze(-1) - s[:, 0] * s[:, 1]).pow(2)


for epoch in range(3):
    for _ in range(10):
        s = torch.rand(64, 2) * 2 - 1
        a, logp = policy(s)
        alpha = log_alpha.exp()
        policy_loss = (alpha.detach() * logp - q_value(s, a)).mean()
        alpha_loss = -(log_alpha * (logp.detach() + target_entropy)).mean()

        optimizer.zero_grad()
        (policy_loss + alpha_loss).backward()
        optimizer.step()
    print(
        f"epoch {epoch} q {q_value(s, a).mean().item():.3f} entropy {-logp.mean().item():.3f} alpha {alpha.item():.3f}"
    )
