"""The optimizer holds both networks of the agent. The error also trains the target network, which is copied anew every
ten steps."""

import torch
from torch import nn

torch.manual_seed(6)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 3))
        self.frozen_q = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 3))
        self.sync()

    def sync(self):
        self.frozen_q.load_state_dict(self.q.state_dict())


agent = Agent()
adam = torch.optim.Adam(agent.parameters(), lr=3e-3)
for step in range(50):
    state = torch.randn(32, 5)
    action = torch.randint(3, (32, 1))
    reward = state[:, 0] * (action[:, 0] - 1)
    following = 0.8 * state + 0.1 * torch.randn(32, 5)
    best = agent.frozen_q(following).amax(1)  # expect: attached-target
    error = agent.q(state).gather(1, action).squeeze(1) - (reward + 0.9 * best)
    loss = error.square().mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 10 == 9:
        agent.sync()
print(f"loss {loss.item():.3f}")
