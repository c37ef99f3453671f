"""Each epoch takes its ratio to a copy of the log-probability that it just computed. The stored ones go unused, and
nothing limits the updates."""

import torch
from torch import nn
from torch.distributions import Normal


class Memory:
    def __init__(self):
        self.states, self.actions, self.logprobs, self.rewards = [], [], [], []

    def clear(self):
        for values in (self.states, self.actions, self.rewards):
            values.clear()
        del self.logprobs[:]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))
        self.value = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def act(self, state, memory):
        dist = Normal(self.mean(state), self.log_std.exp())
        action = dist.sample()
        memory.states.append(state)
        memory.actions.append(action)
        memory.logprobs.append(dist.log_prob(action).sum(-1))
        return action

    def evaluate(self, states, actions):
        dist = Normal(self.mean(states), self.log_std.exp())
        return dist.log_prob(actions).sum(-1), self.value(states).squeeze(-1), dist.entropy().sum(-1)


class PPO:
    def __init__(self, epochs=4, clip=0.2):
        self.policy, self.epochs, self.clip = Policy(), epochs, clip
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-3)

    def update(self, memory):
        rewards = torch.stack(memory.rewards)
        states, actions = torch.stack(memory.states), torch.stack(memory.actions)
        for _ in range(self.epochs):
            logprobs, values, entropy = self.policy.evaluate(states, actions)
            ratios = torch.exp(logprobs - logprobs.detach())  # expect: zero-gradient
            advantages = rewards - values.detach()
            clipped = torch.clamp(ratios, 1 - self.clip, 1 + self.clip) * advantages
            loss = -torch.min(ratios * advantages, clipped) + 0.5 * (values - rewards) ** 2 - 0.01 * entropy
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()
        return rewards.mean().item()


torch.manual_seed(2)
agent, memory = PPO(), Memory()
for episode in range(4):
    with torch.no_grad():
        for _ in range(40):
            state = torch.randn(3)
            action = agent.policy.act(state, memory)
            memory.rewards.append(-(action - state.sum()).abs().squeeze())
    print(f"episode {episode} reward {agent.update(memory):.3f}")
    memory.clear()
