"""DQN on a chain of states. There is no second network; the target comes from the trained
network itself and is detached (semi-gradient Q-learning)."""
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

N_STATES = 8
GAMMA = 0.9


class Chain:
    """Move left or right; reward 1 at the right end."""

    def reset(self):
        self.pos = random.randint(0, N_STATES - 2)
        self.t = 0
        return self.pos

    def step(self, action):
        self.pos = max(0, self.pos + (1 if action == 1 else -1))
        self.t += 1
        goal = self.pos == N_STATES - 1
        return self.pos, float(goal), goal


def one_hot(states):
    return F.one_hot(torch.as_tensor(states), N_STATES).float()


class Agent:
    def __init__(self):
        self.q = nn.Sequential(nn.Linear(N_STATES, 24), nn.ReLU(), nn.Linear(24, 2))
        self.opt = torch.optim.Adam(self.q.parameters(), lr=1e-2)
        self.memory = deque(maxlen=1000)

    def act(self, state, eps):
        if random.random() < eps:
            return random.randint(0, 1)
        with torch.no_grad():
            return int(self.q(one_hot([state])).argmax(1))

    def learn(self, batch_size=32):
        batch = random.sample(self.memory, batch_size)
        s, a, r, s2, done = zip(*batch)
        a = torch.tensor(a).unsqueeze(1)
        r = torch.tensor(r)
        done = torch.tensor(done, dtype=torch.float32)
        q_sa = self.q(one_hot(s)).gather(1, a).squeeze(1)
        next_q = self.q(one_hot(s2)).max(1).values
        target = r + GAMMA * (1 - done) * next_q.detach()
        loss = F.smooth_l1_loss(q_sa, target)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def main():
    random.seed(4)
    torch.manual_seed(4)
    env, agent = Chain(), Agent()
    state = env.reset()
    losses = []
    for t in range(160):
        action = agent.act(state, eps=1.0)
        nxt, reward, done = env.step(action)
        agent.memory.append((state, action, reward, nxt, done))
        state = env.reset() if done or env.t >= 20 else nxt
        if t >= 60 and t % 4 == 0:
            losses.append(agent.learn())
    values = agent.q(one_hot(range(N_STATES))).max(1).values
    print(f"updates {len(losses)}  loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    print("V:", " ".join(f"{v:.2f}" for v in values.tolist()))


main()
