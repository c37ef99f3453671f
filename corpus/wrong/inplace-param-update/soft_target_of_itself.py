"""A value network's target is the value network itself, so its soft updates change nothing."""

import torch
from torch import nn

torch.manual_seed(2)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, state):
        return self.value(state).squeeze(1)


def soft_update(target, source, rate):
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), source.parameters()):
            slow.lerp_(fast, rate)


class Evaluator:
    def __init__(self, critic, discount=0.9):
        self.critic = critic
        self.target = critic  # expect: inplace-param-update
        self.discount = discount
        self.optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)

    def learn(self, state, reward, after):
        with torch.no_grad():
            wanted = reward + self.discount * self.target(after)
        loss = (self.critic(state) - wanted).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        soft_update(self.target, self.critic, 0.01)
        return loss.item()


evaluator = Evaluator(Critic())
states = torch.rand(257, 5)
rewards = states[:-1, 0] - 0.5
for sweep in range(6):
    for rows in torch.randperm(256).split(64):
        loss = evaluator.learn(states[rows], rewards[rows], states[rows + 1])
    print(f"sweep {sweep + 1}, loss {loss:.4f}")
