"""The policy's first layer is never used. A second network, which plays, gets the weights after each update."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, n_inputs, n_hidden, n_actions):
        super().__init__()
        self.embed = nn.Linear(n_inputs, n_hidden)  # expect: unreached-parameter
        self.actor = nn.Sequential(nn.Linear(n_inputs, n_hidden), nn.Tanh(), nn.Linear(n_hidden, n_actions))
        self.critic = nn.Sequential(nn.Linear(n_inputs, n_hidden), nn.Tanh(), nn.Linear(n_hidden, 1))

    def forward(self, states):
        return Categorical(logits=self.actor(states)), self.critic(states).squeeze(-1)


class Agent:
    def __init__(self):
        self.policy, self.player = Policy(4, 16, 3), Policy(4, 16, 3)
        self.player.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-3)

    @torch.no_grad()
    def play(self, n):
        states = torch.randn(n, 4)
        policy, _ = self.player(states)
        actions = policy.sample()
        return states, actions, policy.log_prob(actions), (actions == states[:, :3].argmax(1)).float()

    def update(self, states, actions, old, rewards):
        for _ in range(3):
            policy, values = self.policy(states)
            ratio = torch.exp(policy.log_prob(actions) - old)
            advantage = rewards - values.detach()
            clipped = torch.clamp(ratio, 0.8, 1.2)
            surrogate = -torch.min(ratio * advantage, clipped * advantage).mean()
            loss = surrogate + 0.5 * F.mse_loss(values, rewards)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.player.load_state_dict(self.policy.state_dict())
        return loss.item()


torch.manual_seed(0)
agent = Agent()
for _ in range(6):
    loss = agent.update(*agent.play(32))
print(f"loss {loss:.4f}")
