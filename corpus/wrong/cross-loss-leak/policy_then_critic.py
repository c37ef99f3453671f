"""Both gradients are cleared first, then the policy's loss and the critic's loss are back-propagated: the critic's step
also makes its values of the policy's actions larger."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1), nn.Tanh())
critic = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1))
optimizers = {
    "policy": torch.optim.Adam(policy.parameters(), lr=1e-3),
    "critic": torch.optim.Adam(critic.parameters(), lr=1e-3),
}
for step in range(60):
    state, action = torch.randn(32, 3), 2 * torch.rand(32, 1) - 1
    reward = -(state[:, :1] - action).square()
    for each in optimizers.values():
        each.zero_grad()  # expect: cross-loss-leak
    losses = {
        "policy": -critic(torch.cat([state, policy(state)], 1)).mean(),
        "critic": F.mse_loss(critic(torch.cat([state, action], 1)), reward),
    }
    for name in losses:
        losses[name].backward()
    for each in optimizers.values():
        each.step()
print(f"critic {losses['critic'].item():.3f}")
