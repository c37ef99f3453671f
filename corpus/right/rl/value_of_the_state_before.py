"""An online actor-critic, whose value loss needs a state and its successor, so that the first step has none."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(4)
trunk = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
actor, critic = nn.Linear(16, 3), nn.Linear(16, 1)
parameters = [*trunk.parameters(), *actor.parameters(), *critic.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.01)
before, reward = None, 0.0
state = torch.randn(4)
for step in range(30):
    optimizer.zero_grad()
    if before is not None:
        with torch.no_grad():
            target = reward + 0.9 * critic(trunk(state))
        val_loss = (critic(trunk(before)) - target).square().mean()
        val_loss.backward()
    policy = Categorical(logits=actor(trunk(state)))
    action = policy.sample()
    reward = float(action == state.argmax() % 3)
    policy_loss = -policy.log_prob(action) * reward
    policy_loss.backward()
    optimizer.step()
    before, state = state, torch.randn(4)
print(f"value loss {val_loss.item():.3f}")
