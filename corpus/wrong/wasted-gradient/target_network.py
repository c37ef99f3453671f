"""The bootstrapped target is computed with its graph, so each backward also fills the target network's gradients, which
no optimizer ever reads."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class ReplayMemory:
    def __init__(self):
        self.data = []

    def push(self, *item):
        self.data.append(item)

    def sample(self, n):
        cols = zip(*random.sample(self.data, n))
        return [torch.stack([torch.as_tensor(v, dtype=torch.float32) for v in c]) for c in cols]


class DQNAgent:
    def __init__(self, n_state, n_action, gamma=0.9, lr=3e-3):
        self.q = nn.Sequential(nn.Linear(n_state, 32), nn.ReLU(), nn.Linear(32, n_action))
        self.q_target = nn.Sequential(nn.Linear(n_state, 32), nn.ReLU(), nn.Linear(32, n_action))
        self.sync()
        self.gamma = gamma
        self.opt = torch.optim.Adam(self.q.parameters(), lr=lr)

    def sync(self):
        self.q_target.load_state_dict(self.q.state_dict())

    def learn(self, s, a, r, s2, done):
        q = self.q(s).gather(1, a.long().unsqueeze(1)).squeeze(1)
        next_q = self.q_target(s2).max(1).values  # expect: wasted-gradient
        loss = F.mse_loss(q, r + self.gamma * (1 - done) * next_q)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


random.seed(3)
torch.manual_seed(3)
memory = ReplayMemory()
temp = 0.5
for t in range(400):
    a = random.randrange(2)
    nxt = min(1.0, max(0.0, temp + (0.1 if a else -0.1) + random.gauss(0, 0.03)))
    memory.push([temp, t % 20 / 20], a, -abs(nxt - 0.7), [nxt, (t + 1) % 20 / 20], float(t % 20 == 19))
    temp = 0.5 if t % 20 == 19 else nxt

agent = DQNAgent(2, 2)
for epoch in range(3):
    losses = [agent.learn(*memory.sample(32)) for _ in range(10)]
    agent.sync()
    print(f"epoch {epoch} td error {sum(losses) / len(losses):.4f}")
