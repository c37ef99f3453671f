"""DDPG on a tracking task. The actor's backward pass leaves gradients in the critic, but only
after the critic's step, and they are cleared in the next round."""
import copy

import torch
import torch.nn as nn

GAMMA, TAU = 0.9, 0.05


class PointEnv:
    """A point that is pushed towards a target on a line."""

    def reset(self):
        self.pos = torch.rand(1) * 2 - 1
        self.goal = torch.rand(1) * 2 - 1
        return torch.cat([self.pos, self.goal])

    def step(self, action):
        self.pos = (self.pos + 0.3 * action).clamp(-2, 2)
        reward = -(self.pos - self.goal).abs()
        return torch.cat([self.pos, self.goal]), reward


def net(n_in, n_out, last=None):
    layers = [nn.Linear(n_in, 32), nn.ReLU(), nn.Linear(32, n_out)]
    return nn.Sequential(*layers, *([last] if last else []))


class DDPG:
    def __init__(self):
        self.actor = net(2, 1, nn.Tanh())
        self.critic = net(3, 1)
        self.actor_target = copy.deepcopy(self.actor)
        self.critic_target = copy.deepcopy(self.critic)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=3e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-2)

    def q(self, critic, s, a):
        return critic(torch.cat([s, a], 1))

    def update(self, s, a, r, s2):
        self.actor_opt.zero_grad()
        self.critic_opt.zero_grad()
        with torch.no_grad():
            target = r + GAMMA * self.q(self.critic_target, s2, self.actor_target(s2))
        critic_loss = (self.q(self.critic, s, a) - target).pow(2).mean()
        critic_loss.backward()
        self.critic_opt.step()

        actor_loss = -self.q(self.critic, s, self.actor(s)).mean()
        actor_loss.backward()
        self.actor_opt.step()
        self.soft_update()
        return critic_loss.item(), actor_loss.item()

    @torch.no_grad()
    def soft_update(self):
        for online, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            for p, t in zip(online.parameters(), target.parameters()):
                t.lerp_(p, TAU)


def collect(n):
    env, rows = PointEnv(), []
    for _ in range(n // 10):
        s = env.reset()
        for _ in range(10):
            a = torch.rand(1) * 2 - 1
            s2, r = env.step(a)
            rows.append((s, a, r, s2))
            s = s2
    return [torch.stack(c) for c in zip(*rows)]


def main():
    torch.manual_seed(141)
    buffer = collect(300)
    agent = DDPG()
    for step in range(30):
        idx = torch.randint(0, len(buffer[0]), (64,))
        c, a = agent.update(*[b[idx] for b in buffer])
        if step % 10 == 0:
            print(f"step {step:2d}  critic {c:.4f}  actor {a:.4f}")
    print(f"final    critic {c:.4f}  actor {a:.4f}")


main()
