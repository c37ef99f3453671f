"""A critic over a rollout of several walkers. The next step's value, from the same stack, is a target with a graph."""

import torch
from torch import nn

torch.manual_seed(0)
LENGTH, WALKERS, HORIZON, GAMMA = 7, 6, 10, 0.9
critic = nn.Sequential(nn.Linear(LENGTH, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=3e-3)
place = torch.full((WALKERS,), LENGTH // 2)

for rollout in range(12):
    values, rewards = [], []
    for _ in range(HORIZON):
        values.append(critic(nn.functional.one_hot(place, LENGTH).float()).squeeze(-1))
        place = (place + torch.randint(0, 2, (WALKERS,)) * 2 - 1).clamp(0, LENGTH - 1)
        rewards.append((place == LENGTH - 1).float())
        place = torch.where(place == LENGTH - 1, LENGTH // 2, place)
    stacked = torch.stack(values)
    error, errors = torch.zeros(WALKERS), []
    for t in reversed(range(HORIZON - 1)):
        delta = rewards[t] + GAMMA * stacked[t + 1] - stacked[t]  # expect: attached-target
        error = delta + GAMMA * 0.8 * error
        errors.append(error)
    loss = torch.stack(errors).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
