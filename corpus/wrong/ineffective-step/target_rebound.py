"""Two loops over a target network rebind their variable: with torch.lerp, and with .data on the right only."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


class Agent:
    def __init__(self, tau=0.1):
        self.tau = tau
        self.value = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
        self.target = copy.deepcopy(self.value).requires_grad_(False)
        self.policy = nn.Linear(3, 2)
        self.old_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self.opt = torch.optim.Adam([*self.value.parameters(), *self.policy.parameters()], lr=3e-3)

    def follow(self):
        for (_, old), new in zip(self.target.named_parameters(), self.value.parameters()):
            old = torch.lerp(old, new, self.tau)  # expect: ineffective-step
        for old, new in zip(self.old_policy.parameters(), self.policy.parameters()):
            old = old.data * (1 - self.tau) + new.data * self.tau  # expect: ineffective-step

    def learn(self, state, action, reward, after):
        with torch.no_grad():
            goal = reward + 0.9 * self.target(after).max(1).values
            old = self.old_policy(state).softmax(1)
        value = self.value(state).gather(1, action[:, None])[:, 0]
        log_policy = self.policy(state).log_softmax(1)
        gain = log_policy.gather(1, action[:, None])[:, 0] * (goal - value).detach()
        loss = F.mse_loss(value, goal) - gain.mean() + F.kl_div(log_policy, old, reduction="batchmean")
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.follow()
        return loss.item()


torch.manual_seed(4)
agent = Agent()
for _ in range(20):
    state, action = torch.randn(16, 3), torch.randint(2, (16,))
    loss = agent.learn(state, action, state[:, 0] * (action * 2 - 1), torch.randn(16, 3))
print(f"{loss:.4f}")
