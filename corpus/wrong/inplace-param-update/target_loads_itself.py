"""The target network of a value function loads its own state, not that of the online network."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class Critic:
    def __init__(self):
        self.online = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.slow = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=3e-3)

    def sync(self):
        self.slow.load_state_dict(self.slow.state_dict())  # expect: inplace-param-update

    def update(self, state, action, reward, following):
        with torch.no_grad():
            target = reward + 0.95 * self.slow(following).amax(1)
        value = self.online(state).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.huber_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


critic = Critic()
for step in range(40):
    state = torch.randn(32, 4)
    critic.update(state, torch.randint(2, (32,)), state[:, 0], state.roll(1, 1))
    if step % 10 == 9:
        critic.sync()
