"""The policy's loss detaches the policy's own action, so the policy stays as it was made. Both the exploration and the
actions in the memory are detached as well, and rightly so."""

from collections import deque

import torch
from torch import nn
from torch.nn import functional as F


class Cart:
    """A mass on a line that is to come to rest at 0."""

    def reset(self):
        self.at, self.speed, self.t = 2 * torch.rand(()).item() - 1, 0.0, 0
        return [self.at, self.speed]

    def step(self, push):
        self.speed = 0.9 * self.speed + 0.2 * push
        self.at += 0.2 * self.speed
        self.t += 1
        return [self.at, self.speed], -(self.at**2) - 0.01 * push**2, self.t >= 20


class Agent:
    def __init__(self, hidden=24, gamma=0.95):
        self.policy = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1), nn.Tanh())
        self.value = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.policy_opt = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.value_opt = torch.optim.Adam(self.value.parameters(), lr=1e-2)
        self.memory = deque(maxlen=500)
        self.gamma = gamma

    def act(self, state):
        push = self.policy(torch.tensor(state)).item()
        return max(-1.0, min(1.0, push + 0.3 * torch.randn(()).item()))

    def score(self, states, pushes):
        return self.value(torch.cat([states, pushes], 1))

    def learn(self, batch=32):
        rows = [self.memory[i] for i in torch.randint(len(self.memory), (batch,)).tolist()]
        states, pushes, rewards, following = (torch.tensor(column) for column in zip(*rows))
        with torch.no_grad():
            target = rewards[:, None] + self.gamma * self.score(following, self.policy(following))
        value_loss = F.mse_loss(self.score(states, pushes[:, None]), target)
        self.value_opt.zero_grad()
        value_loss.backward()
        self.value_opt.step()

        chosen = self.policy(states).detach()  # expect: broken-graph
        policy_loss = -self.score(states, chosen).mean()
        self.policy_opt.zero_grad()
        policy_loss.backward()
        self.policy_opt.step()
        return value_loss.item()


if __name__ == "__main__":
    torch.manual_seed(6)
    cart, agent = Cart(), Agent()
    for episode in range(4):
        state, done, total = cart.reset(), False, 0.0
        while not done:
            push = agent.act(state)
            following, reward, done = cart.step(push)
            agent.memory.append((state, push, reward, following))
            state, total = following, total + reward
        losses = [agent.learn() for _ in range(6)]
        print(f"episode {episode} return {total:.3f} value loss {losses[-1]:.4f}")
