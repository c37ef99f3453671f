"""The policy's probabilities are passed to Categorical as logits: the policy can't become sure of an action."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(3)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
best = torch.randn(4, 3)

for episode in range(8):
    states = torch.randn(32, 4)
    probabilities = policy(states).softmax(dim=-1)  # expect: loss-input
    actions = Categorical(logits=probabilities)
    chosen = actions.sample()
    reward = ((states @ best).argmax(-1) == chosen).float()
    loss = -(actions.log_prob(chosen) * (reward - reward.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, reward.mean().item())
