"""The target network's values enter the loss with their graph, so every backward pass also computes gradients for the target network that no step uses."""

import argparse
import random
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", "state action reward next_state done")


class Corridor:
    length = 8

    def reset(self):
        self.x, self.t = 0, 0
        return self._state()

    def _state(self):
        s = torch.zeros(self.length)
        s[self.x] = 1.0
        return s

    def step(self, action):
        self.x = max(0, min(self.length - 1, self.x + (1 if action else -1)))
        self.t += 1
        goal = self.x == self.length - 1
        return self._state(), 1.0 if goal else -0.01, goal or self.t >= 30


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        rows = Transition(*zip(*random.sample(self.memory, n)))
        return (
            torch.stack(rows.state),
            torch.tensor(rows.action),
            torch.tensor(rows.reward),
            torch.stack(rows.next_state),
            torch.tensor(rows.done, dtype=torch.float32),
        )

    def __len__(self):
        return len(self.memory)


def make_net(n_state, n_action):
    return nn.Sequential(nn.Linear(n_state, 24), nn.Tanh(), nn.Linear(24, n_action))


class DQNAgent:
    def __init__(self, args):
        self.args = args
        self.policy_net = make_net(Corridor.length, 2)
        self.target_net = make_net(Corridor.length, 2)
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.optimizer = torch.optim.RMSprop(self.policy_net.parameters(), lr=args.lr)
        self.memory = ReplayMemory(500)
        self.updates = 0

    def act(self, state):
        if random.random() < self.args.epsilon:
            return random.randrange(2)
        with torch.no_grad():
            return self.policy_net(state).argmax().item()

    def optimize(self):
        if len(self.memory) < self.args.batch_size:
            return
        state, action, reward, next_state, done = self.memory.sample(self.args.batch_size)
        q = self.policy_net(state).gather(1, action.unsqueeze(1)).squeeze(1)
        next_q = self.target_net(next_state).max(1).values  # expect: wasted-gradient
        expected = reward + self.args.gamma * (1 - done) * next_q
        loss = nn.functional.smooth_l1_loss(q, expected)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.args.sync == 0:
            self.target_net.load_state_dict(self.policy_net.state_dict())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--episodes", type=int, default=3)
    p.add_argument("--gamma", type=float, default=0.95)
    p.add_argument("--epsilon", type=float, default=0.3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--sync", type=int, default=10)
    args = p.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    env, agent = Corridor(), DQNAgent(args)
    for episode in range(args.episodes):
        state, done, total = env.reset(), False, 0.0
        while not done:
            action = agent.act(state)
            next_state, reward, done = env.step(action)
            agent.memory.push(state, action, reward, next_state, done)
            agent.optimize()
            state, total = next_state, total + reward
        print(f"episode {episode} return {total:.2f} updates {agent.updates}")


if __name__ == "__main__":
    main()
