"""The actor's loss leaves its gradients in the critic, whose own backward call comes after a clearing."""

import torch
from torch import nn

torch.manual_seed(6)
actor = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh())
critic = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1))
opts = torch.optim.Adam(actor.parameters(), lr=2e-3), torch.optim.Adam(critic.parameters(), lr=2e-3)


def q(state, action):
    return critic(torch.cat([state, action], 1))


for it in range(20):
    state, action = torch.randn(48, 2), torch.rand(48, 1) * 2 - 1
    reward = -(action - state[:, :1]).abs()
    opts[0].zero_grad()
    (-q(state, actor(state)).mean()).backward()
    opts[1].zero_grad()
    loss = nn.functional.smooth_l1_loss(q(state, action), reward)
    loss.backward()
    for opt in opts:
        opt.step()
    if it % 10 == 9:
        print(f"{it + 1} {loss.item():.3f}")
