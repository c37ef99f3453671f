"""Looks like a leak: the actor's loss goes through the critic and leaves gradients there, which the
critic's next zero_grad clears; the target networks follow by polyak averaging."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

GAMMA, TAU = 0.9, 0.02


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1), nn.Tanh())

    def forward(self, s):
        return self.net(s)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, s, a):
        return self.net(torch.cat([s, a], 1))


def dynamics(s, a):
    pos, vel = s[:, :1], s[:, 1:]
    vel = 0.9 * vel + 0.3 * a
    pos = pos + 0.3 * vel
    return torch.cat([pos, vel], 1), -(pos**2 + 0.1 * a**2)


class DDPG:
    def __init__(self):
        self.actor, self.critic = Actor(), Critic()
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-3, weight_decay=1e-4)

    def train(self, state, action, next_state, reward):
        target_q = self.critic_target(next_state, self.actor_target(next_state))
        target_q = reward + (GAMMA * target_q).detach()
        critic_loss = F.mse_loss(self.critic(state, action), target_q)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        actor_loss = -self.critic(state, self.actor(state)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        for param, target_param in zip(self.critic.parameters(), self.critic_target.parameters()):
            target_param.data.copy_(TAU * param.data + (1 - TAU) * target_param.data)
        for param, target_param in zip(self.actor.parameters(), self.actor_target.parameters()):
            target_param.data.copy_(TAU * param.data + (1 - TAU) * target_param.data)
        return critic_loss.item(), actor_loss.item()


torch.manual_seed(0)
agent = DDPG()
states = torch.randn(32, 2)
for it in range(12):
    with torch.no_grad():
        actions = (agent.actor(states) + 0.2 * torch.randn(32, 1)).clamp(-1, 1)
    next_states, rewards = dynamics(states, actions)
    q_loss, pi_loss = agent.train(states, actions, next_states, rewards)
    states = next_states if it % 6 else torch.randn(32, 2)
print(f"critic {q_loss:.4f} actor {pi_loss:.4f}")
