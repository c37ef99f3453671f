"""Looks like unreached parameters and a cut graph: the target network is only ever copied into, and its
values are taken under no_grad."""

import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class Corridor:
    """Walk right to the end of a corridor; a step costs a little."""

    n_obs, n_actions, length = 6, 2, 6

    def reset(self):
        self.pos, self.t = 0, 0
        return self.obs()

    def obs(self):
        return F.one_hot(torch.tensor(self.pos), self.length).float()

    def step(self, action):
        self.pos = min(self.length - 1, max(0, self.pos + (1 if action else -1)))
        self.t += 1
        done = self.pos == self.length - 1 or self.t >= 20
        return self.obs(), (1.0 if self.pos == self.length - 1 else -0.02), done


def q_net(env):
    return nn.Sequential(nn.Linear(env.n_obs, 32), nn.ReLU(), nn.Linear(32, env.n_actions))


def optimize(policy, target, optimizer, memory, batch_size=16, gamma=0.95):
    s, a, r, s2, d = zip(*random.sample(memory, batch_size))
    s, s2 = torch.stack(s), torch.stack(s2)
    a, r, d = torch.tensor(a), torch.tensor(r), torch.tensor(d, dtype=torch.float32)
    q = policy(s).gather(1, a[:, None]).squeeze(1)
    with torch.no_grad():
        best = target(s2).max(1).values
        goal = r + gamma * (1 - d) * best
    loss = F.smooth_l1_loss(q, goal)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
    return loss.item()


def main():
    random.seed(0)
    torch.manual_seed(0)
    env, memory = Corridor(), deque(maxlen=500)
    policy, target = q_net(env), q_net(env)
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3, amsgrad=True)
    state, updates, losses = env.reset(), 0, []
    for step in range(80):
        if random.random() < 0.5:
            action = random.randrange(env.n_actions)
        else:
            action = policy(state).argmax().item()
        nxt, reward, done = env.step(action)
        memory.append((state, action, reward, nxt, done))
        state = env.reset() if done else nxt
        if len(memory) >= 32 and step % 2 == 0:
            losses.append(optimize(policy, target, optimizer, memory))
            updates += 1
            if updates % 8 == 0:
                target.load_state_dict(policy.state_dict())
    print(f"{updates} updates, loss {sum(losses[-5:]) / 5:.4f}")


main()
