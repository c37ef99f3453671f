"""The critic's optimizer never clears: its steps repeat all earlier errors, and all policy losses through it."""

import torch
from torch import nn


class Pilot:
    def __init__(self):
        self.pi = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1), nn.Tanh())
        self.q = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1))
        self.pi_opt = torch.optim.SGD(self.pi.parameters(), lr=0.02)
        self.q_opt = torch.optim.SGD(self.q.parameters(), lr=0.005)

    def value(self, state, action):
        return self.q(torch.cat((state, action), dim=1)).squeeze(1)

    def learn(self, state, action, reward):
        error = (self.value(state, action) - reward).pow(2).mean()
        error.backward()
        self.q_opt.step()  # expect: missing-zero-grad

        self.pi_opt.zero_grad()
        loss = -self.value(state, self.pi(state)).mean()
        loss.backward()
        self.pi_opt.step()
        return error.item(), loss.item()


torch.manual_seed(19)
pilot = Pilot()
for update in range(24):
    state, action = torch.randn(40, 3), torch.rand(40, 1) * 2 - 1
    error, loss = pilot.learn(state, action, -(action - state.mean(1, keepdim=True)).square().squeeze(1))
    if update % 12 == 11:
        print(f"update {update + 1} error {error:.3f} policy {loss:.3f}")
