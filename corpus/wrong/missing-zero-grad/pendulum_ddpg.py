"""Before the critic's backward pass the actor's optimizer is cleared instead of the critic's, so the critic's gradients pile up update after update."""

import copy
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)

GAMMA, TAU, BATCH = 0.97, 0.02, 32


class Pendulum:
    """Tiny torque-limited pendulum."""

    def reset(self):
        self.th, self.w, self.t = random.uniform(-3.1, 3.1), random.uniform(-1, 1), 0
        return self.state()

    def state(self):
        th = torch.tensor(self.th)
        return torch.stack([th.cos(), th.sin(), torch.tensor(self.w)])

    def step(self, u):
        u = max(-2.0, min(2.0, u))
        th = torch.remainder(torch.tensor(self.th) + torch.pi, 2 * torch.pi) - torch.pi
        cost = th.item() ** 2 + 0.1 * self.w**2 + 0.001 * u**2
        self.w += (7.5 * torch.sin(th).item() + 3.0 * u) * 0.05
        self.w = max(-8.0, min(8.0, self.w))
        self.th += self.w * 0.05
        self.t += 1
        return self.state(), -cost, self.t >= 40


def mlp(n_in, n_out, last=None):
    layers = [nn.Linear(n_in, 24), nn.Tanh(), nn.Linear(24, n_out)]
    return nn.Sequential(*layers, *([last] if last else []))


actor, critic = mlp(3, 1, nn.Tanh()), mlp(4, 1)
actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
for p in list(actor_target.parameters()) + list(critic_target.parameters()):
    p.requires_grad_(False)
actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=2e-3)
memory = deque(maxlen=1000)


def soft_update(target, source):
    with torch.no_grad():
        for t, s in zip(target.parameters(), source.parameters()):
            t.lerp_(s, TAU)


def learn():
    batch = random.sample(memory, BATCH)
    s, a, r, s2, done = (torch.stack(list(col)) for col in zip(*batch))
    with torch.no_grad():
        a2 = actor_target(s2)
        target = r + GAMMA * (1 - done) * critic_target(torch.cat([s2, a2], 1)).squeeze(1)
    q = critic(torch.cat([s, a], 1)).squeeze(1)
    critic_loss = F.mse_loss(q, target)
    actor_opt.zero_grad()  # expect: missing-zero-grad
    critic_loss.backward()
    critic_opt.step()

    for p in critic.parameters():
        p.requires_grad_(False)
    actor_loss = -critic(torch.cat([s, actor(s)], 1)).mean()
    actor_opt.zero_grad()
    actor_loss.backward()
    actor_opt.step()
    for p in critic.parameters():
        p.requires_grad_(True)

    soft_update(actor_target, actor)
    soft_update(critic_target, critic)
    return critic_loss.item()


env = Pendulum()
for episode in range(3):
    state, done, ret, losses = env.reset(), False, 0.0, []
    while not done:
        with torch.no_grad():
            action = (actor(state) + 0.2 * torch.randn(1)).clamp(-1, 1)
        nxt, reward, done = env.step(2 * action.item())
        memory.append((state, action, torch.tensor(reward), nxt, torch.tensor(float(done))))
        state, ret = nxt, ret + reward
        if len(memory) >= BATCH and len(memory) % 2 == 0:
            losses.append(learn())
    print(f"episode {episode} return {ret:.1f} critic loss {sum(losses) / max(1, len(losses)):.2f}")
