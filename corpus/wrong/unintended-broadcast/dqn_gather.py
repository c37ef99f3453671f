"""Q-learning: gather() returns the values of the actions as (N, 1), the targets are (N,). Each value is trained towards the
mean of all targets, so the network learns the same value for all states."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target_q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target_q.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)


def replay(n):
    states = torch.randn(n, 4)
    actions = torch.randint(2, (n,))
    rewards = (states[:, 0] > 0).float() * actions
    return states, actions, rewards, states + 0.1 * torch.randn(n, 4), torch.rand(n) < 0.1


for update in range(20):
    S, A, R, S2, done = replay(32)
    values = q(S).gather(1, A.unsqueeze(1))
    with torch.no_grad():
        y = R + 0.99 * target_q(S2).max(1).values * ~done
    loss = F.mse_loss(values, y)  # expect: unintended-broadcast
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 10 == 9:
        target_q.load_state_dict(q.state_dict())
        print(update, f"{loss.item():.4f}")
